"""A full disk: a line that says so, the old file as it was, nothing half-written. On a real small file system."""

import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from tests.bench.runs import config_in, quietly, save_model
from tests.calibrate.test_profile import made_up
from tests.release.commands import call, refused
from thg.bench.config import override
from thg.bench.report import rebuild_report
from thg.bench.store import RunFolderError
from training.loop import save_atomically

SIZE = 256 * 1024


@pytest.fixture
def small(tmp_path):
    """A file system of a few hundred kilobytes."""
    place = tmp_path / "small"
    place.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a tmpfs is not permitted here: {error}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path, leave: int = 0) -> None:
    """Takes all but `leave` bytes of a file system."""
    with (place / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            file.truncate(file.tell() - leave)


def content(place: Path) -> dict[str, bytes]:
    files = (path for path in place.rglob("*") if path.is_file() and path.name != "filler")
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def says_full(message: str) -> bool:
    return "No space left on device" in message


def test_a_profile(small):
    path = small / "profile.json"
    made_up(20).save(path)
    before = content(small)
    fill(small)
    with pytest.raises(OSError, match="No space left"):
        made_up(40).save(path, force=True)
    assert content(small) == before


def test_a_large_profile_whose_arrays_lie_beside_it(small):
    path = small / "profile.json"
    fill(small, leave=8192)
    with pytest.raises(OSError, match="No space left"):
        made_up(160).save(path)
    assert content(small) == {}


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif"])
def test_a_picture(small, suffix):
    path = small / f"picture{suffix}"
    words = ("generate", "a bag", "--model", "eps", "--steps", 2, "-o", path, "--force")
    assert call(*words)[0] == 0
    before = content(small)
    fill(small)
    assert says_full(refused(*words, "--seed", 1))
    assert content(small) == before


def test_a_plot(small):
    pytest.importorskip("matplotlib")
    profile = small / "profile.json"
    made_up(20).save(profile)
    before = content(small)
    fill(small)
    assert says_full(refused("plan", profile, "--plot", small / "plot.png"))
    assert content(small) == before


def test_a_checkpoint_of_training(small):
    path = small / "eps.ckpt.safetensors"
    save_atomically({"weight": torch.zeros(100)}, path)
    before = content(small)
    fill(small)
    with pytest.raises(SafetensorError, match="No space left"):
        save_atomically({"weight": torch.zeros(100_000)}, path)
    assert content(small) == before


def test_calibration(small, tmp_path):
    words = ("calibrate", "--steps", 4, "--samples", 2, "--batch-size", 1, "--sensitivity", 0, "--quiet")
    fill(small, leave=8192)
    assert says_full(refused(*words, "--out", small / "profile.json"))
    assert "profile.json" not in content(small)
    (small / "filler").unlink()
    assert call(*words, "--out", small / "profile.json")[0] == 0
    assert call(*words, "--out", tmp_path / "profile.json")[0] == 0
    assert (small / "profile.json").read_bytes() == (tmp_path / "profile.json").read_bytes()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return folder


def test_a_benchmark_and_its_report(small, model):
    config = override(config_in(model), count=3)
    fill(small, leave=40960)
    with pytest.raises(RunFolderError, match=r"9 samples take about .* but only .* are free; choose another disk"):
        quietly(config, small / "run")
    assert not [name for name in content(small) if "samples" in name]
    (small / "filler").unlink()
    quietly(config, small / "run")
    rebuild_report(small / "run")
    (small / "run" / "sheet.png").write_bytes(b"old")
    before = content(small)
    fill(small)
    assert says_full(refused("report", small / "run"))
    assert content(small) == before
