"""Every example runs as it is for users, on complete pipelines of its family, tiny and saved to disk."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from PIL import Image

from tests import tiny_hub
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
    "sdxl.py": "StableDiffusionXLPipeline: 49 network evaluations instead of 80",
    "sd35_large.py": "StableDiffusion3Pipeline: 38 network evaluations instead of 56",
    "wan_video.py": "WanPipeline: 63 network evaluations instead of 100",
    "audioldm2.py": "AudioLDM2Pipeline: 214 network evaluations instead of 400",
}
OWN_MODEL = ("minimal.py", "calibrate_and_save.py")
NO_MODEL = sorted(
    str(path.relative_to(EXAMPLES))
    for path in EXAMPLES.rglob("*.py")
    if path.name not in (*SAVES, *OWN_MODEL, "multi_gpu.py", "modular_guider.py")
)


def run(folder: Path, *command: object) -> str:
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SAVES)
def test_on_a_pipeline_of_its_family(name, tmp_path):
    model = SAVES[name](tmp_path / "model")
    work = tmp_path / "work"
    work.mkdir()
    shown = run(work, EXAMPLES / name, model)
    assert SHOWS[name] in shown
    (result,) = work.iterdir()
    if result.suffix == ".wav":
        with wave.open(str(result)) as sound:
            assert (sound.getframerate(), sound.getnframes()) == (16000, 8000)
    else:
        with Image.open(result) as picture:
            assert getattr(picture, "n_frames", 1) == (5 if result.suffix == ".gif" else 1)


@pytest.mark.parametrize("model", [shipped_path("eps"), "--shipped"], ids=["folder", "shipped"])
@pytest.mark.parametrize("name", OWN_MODEL)
def test_on_stable_diffusion(name, model, tmp_path):
    shown = run(tmp_path, EXAMPLES / name, model)
    assert "StableDiffusionPipeline: " in shown
    assert "% saved" in shown
    assert list(tmp_path.iterdir())


def test_modular_diffusers(tmp_path):
    run(tmp_path, EXAMPLES / "modular_guider.py", "--shipped")
    with Image.open(tmp_path / "modular.png") as picture:
        assert picture.size == (32, 32)


@pytest.mark.parametrize("name", NO_MODEL)
def test_without_a_model(name, tmp_path):
    assert "evaluations" in run(tmp_path, EXAMPLES / name)


def test_several_processes(tmp_path):
    (tmp_path / "prompts.txt").write_text("a bag\na dark coat\na light dress\na sneaker\n")
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
    shown = run(tmp_path, *launch, EXAMPLES / "multi_gpu.py", shipped_path("eps"))
    assert "process 0: a bag, " in shown
    assert "process 1: a light dress, " in shown
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [f"{i:05d}.png" for i in range(4)]
