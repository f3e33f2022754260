"""Files that were damaged on the way: refused in one line that names the file, and nothing else happens."""

import shutil

import pytest

from tests.bench.runs import sample_file, save_model, values
from tests.calibrate.test_profile import made_up
from tests.release.commands import call, refused
from tests.release.test_fuzz import as_toml
from thg.models import shipped_path

DAMAGE = {
    "cut short": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zeros": lambda content: b"\0" * len(content),
    "a flipped length": lambda content: b"\xff" * 8 + content[8:],
    "a web page": lambda content: b"<!DOCTYPE html><html>not found</html>",
}
damaged = pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)


@pytest.fixture
def model(tmp_path):
    """A copy of the shipped model, as a user's own would be."""
    folder = tmp_path / "model"
    shutil.copytree(shipped_path("eps"), folder)
    return folder


@damaged
@pytest.mark.parametrize(
    "name", ["unet/*.safetensors", "text_encoder/*.safetensors", "model_index.json", "unet/config.json"]
)
def test_a_model(model, tmp_path, name, damage):
    (path,) = model.glob(name)
    path.write_bytes(damage(path.read_bytes()))
    assert str(model) in refused("generate", "a bag", "--model", model, "-o", tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


@damaged
def test_a_profile(tmp_path, damage):
    path = tmp_path / "profile.json"
    made_up(160).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["profile.json"]
    path.write_bytes(damage(path.read_bytes()))
    assert path.name in refused("plan", path)


@damaged
def test_what_a_calibration_has_left(tmp_path, damage):
    words = ("calibrate", "--steps", 2, "--samples", 1, "--sensitivity", 0, "--quiet", "--out", tmp_path / "p.json")
    parts = tmp_path / "p.json.parts"
    assert call(*words)[0] == 0
    for name in ("samples-*", "calibration.json"):
        (tmp_path / "p.json").unlink(missing_ok=True)
        (path,) = parts.glob(name)
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        assert "remove" in refused(*words)
        path.write_bytes(whole)
    assert call(*words)[0] == 0


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A finished benchmark."""
    folder = tmp_path_factory.mktemp("damaged")
    model = {"source": str(save_model(folder))}
    (folder / "bench.toml").write_text(as_toml(values(count=2, steps=3, methods=METHODS, model=model)))
    code, _, err = call(*bench(folder))
    assert code == 0, err
    return folder


METHODS = [{"name": "CFG", "policy": "cfg"}, {"name": "thg", "policy": "uniform", "nfe": 5}]


def bench(folder):
    return ("bench", "--config", folder / "bench.toml", "--out", folder / "run", "--quiet")


@damaged
@pytest.mark.parametrize("name", ["000001.png", "000001.json"])
def test_a_sample_of_a_benchmark(home, name, damage):
    path = sample_file(home / "run", f"thg/{name}")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    try:
        assert "run thg bench again" in refused("report", home / "run")
        path.with_suffix(".json").unlink()
        assert call(*bench(home))[0] == 0
        assert path.read_bytes() == whole
    finally:
        path.write_bytes(whole)
