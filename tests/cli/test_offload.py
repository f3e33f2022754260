"""`--device` and `--offload` on a simulated accelerator: the same picture, and where the weights are."""

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch.utils.backend_registration", reason="a device in Python needs torch 2.9")

from tests.calibrate.pipelines import stable_diffusion
from tests.device.accelerator import NAME
from thg.cli import main, options

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    stable_diffusion().save_pretrained(folder)
    return str(folder)


def generate(folder, out, *words):
    common = ["generate", "a bag", "--model", folder, "--steps", "6", "--plan", "0.75", "--dtype", "float32"]
    assert main([*common, "-o", str(out), *words]) == 0
    with Image.open(out) as picture:
        return np.asarray(picture, dtype=int)


def test_the_picture_is_that_of_the_cpu_and_offloaded_weights_go_back(folder, tmp_path, monkeypatch):
    loaded = []
    load = options.load
    monkeypatch.setattr(options, "load", lambda args: loaded.append(load(args)) or loaded[-1])
    here = generate(folder, tmp_path / "here.png", "--device", "cpu")
    there = generate(folder, tmp_path / "there.png", "--device", NAME)
    offloaded = generate(folder, tmp_path / "offloaded.png", "--device", NAME, "--offload", "model")
    assert np.abs(there - here).max() <= 1
    np.testing.assert_array_equal(offloaded, there)
    assert [next(pipe.unet.parameters()).device.type for pipe in loaded] == ["cpu", NAME, "cpu"]
    assert loaded[2]._execution_device.type == NAME  # so it was there that it ran


@pytest.mark.parametrize("how", ["model", "sequential"])
def test_without_an_accelerator_it_is_refused(folder, how, capsys):
    assert main(["generate", "a bag", "--model", folder, "--device", "cpu", "--offload", how]) == 2
    assert "this run is on the CPU: remove the option" in capsys.readouterr().err
