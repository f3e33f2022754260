"""Every example runs as it is for users, on complete pipelines of its family, tiny and saved to disk."""

from __future__ import annotations

import re
import socket
import wave
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from PIL import Image

from tests import forked, tiny_hub
from tests.calibrate.pipelines import stable_diffusion
from thg.models import shipped_path

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, on configurations this small

EXAMPLES = Path(__file__).parents[1] / "examples"
SAVES = {
    "sdxl.py": tiny_hub.save_sdxl,
    "sd35_large.py": tiny_hub.save_sd3,
    "wan_video.py": tiny_hub.save_wan,
    "audioldm2.py": tiny_hub.save_audioldm2,
}
SHOWS = {  # what `thg.summary` prints
    "sdxl.py": "StableDiffusionXLPipeline: 26 network evaluations instead of 80",
    "sd35_large.py": "StableDiffusion3Pipeline: 38 network evaluations instead of 56",
    "wan_video.py": "WanPipeline: 36 network evaluations instead of 100",
    "audioldm2.py": "AudioLDM2Pipeline: 58 network evaluations instead of 400",
}
OWN_MODEL = {"minimal.py": (), "calibrate_and_save.py": ("12",)}  # arguments after the model
NO_MODEL = sorted(
    str(path.relative_to(EXAMPLES))
    for path in EXAMPLES.rglob("*.py")
    if path.name not in (*SAVES, *OWN_MODEL, "multi_gpu.py", "modular_guider.py")
)


@pytest.fixture
def work(tmp_path) -> Path:
    """The folder that the example runs in."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def start(work: Path, name: str, *words: object, **environment: object) -> tuple[BaseProcess, Path]:
    """An example as a program of its own, and the folder of its streams."""
    streams = work.parent / f"streams-{environment.get('RANK', 0)}"
    streams.mkdir()
    return forked.start(work, forked.script, EXAMPLES / name, *words, streams=streams, **environment), streams


def shown(process: BaseProcess, streams: Path) -> str:
    """What the example has printed in the end."""
    assert forked.finish(process) == 0, (streams / "err.txt").read_text()
    return (streams / "out.txt").read_text()


def run(work: Path, name: str, *words: object) -> str:
    return shown(*start(work, name, *words))


@pytest.mark.parametrize("name", SAVES)
def test_on_a_pipeline_of_its_family(name, work):
    model = SAVES[name](work.parent / "model")
    assert SHOWS[name] in run(work, name, model)
    (result,) = work.iterdir()
    if result.suffix == ".wav":
        with wave.open(str(result)) as sound:
            assert (sound.getframerate(), sound.getnframes()) == (16000, 8000)
    else:
        with Image.open(result) as picture:
            assert getattr(picture, "n_frames", 1) == (5 if result.suffix == ".gif" else 1)


@pytest.mark.parametrize("where", ["folder", "shipped"])
@pytest.mark.parametrize("name", OWN_MODEL)
def test_on_stable_diffusion(name, where, work):
    if where == "folder":
        stable_diffusion().save_pretrained(work.parent / "model")
    words = (work.parent / "model", *OWN_MODEL[name]) if where == "folder" else ("--shipped",)
    printed = run(work, name, *words)
    assert "StableDiffusionPipeline: " in printed
    assert "% saved" in printed
    assert list(work.iterdir())


def test_modular_diffusers(work):
    run(work, "modular_guider.py", "--shipped")
    with Image.open(work / "modular.png") as picture:
        assert picture.size == (32, 32)


@pytest.mark.parametrize("name", NO_MODEL)
def test_without_a_model(name, work):
    assert re.search("evaluations|steps", run(work, name))


def test_several_processes(work):
    """In the environment that `accelerate launch` and `torchrun` give to each."""
    (work / "prompts.txt").write_text("a bag\na dark coat\na light dress\na sneaker\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free.getsockname()[1]}
    running = [
        start(work, "multi_gpu.py", shipped_path("eps"), RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, **address)
        for rank in range(2)
    ]
    first, second = (shown(*process) for process in running)
    assert "process 0: a bag, " in first
    assert "process 1: a light dress, " in second
    assert sorted(path.name for path in work.glob("*.png")) == [f"{i:05d}.png" for i in range(4)]
