"""The files that ship, and the errors when they are not as they should be."""

import json
import shutil

import diffusers
import pytest
import torch

from thg.errors import MissingExtraError, THGError
from thg.models import SHIPPED, load_folder, shipped_path, shipped_pipeline

CLASSES = {
    "eps": "StableDiffusionPipeline",
    "flow": "StableDiffusion3Pipeline",
    "emoji": "StableDiffusionPipeline",
    "audio": "AudioLDM2Pipeline",
}
LARGEST = {"eps": 16e6, "flow": 16e6, "emoji": 45e6, "audio": 30e6}


@pytest.mark.parametrize("name", CLASSES)
def test_folder_is_small_and_holds_no_pickles(name):
    files = [file for file in shipped_path(name).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= LARGEST[name]
    assert {file.suffix for file in files} <= {".json", ".txt", ".safetensors"}


@pytest.mark.parametrize("name", CLASSES)
def test_weights_on_disk_are_half_precision(name):
    from safetensors.torch import load_file

    for file in shipped_path(name).rglob("*.safetensors"):
        assert {tensor.dtype for tensor in load_file(file).values()} <= {torch.float16, torch.int64}, file


def test_pipeline_is_the_genuine_class_in_single_precision(pipe):
    assert type(pipe) in (diffusers.StableDiffusionPipeline, diffusers.StableDiffusion3Pipeline)
    modules = [part for part in pipe.components.values() if isinstance(part, torch.nn.Module)]
    assert {parameter.dtype for module in modules for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", CLASSES)
def test_name_selects_the_class(name):
    index = json.loads((shipped_path(name) / "model_index.json").read_text())
    assert index["_class_name"] == CLASSES[name]


def test_the_table_has_every_model_with_prompts_that_it_knows():
    assert set(SHIPPED) == set(CLASSES)
    for model in SHIPPED.values():
        assert {len(set(prompts(7))) for prompts in (model.prompts, model.calibration)} <= {7, 10}
        for prompt in (*model.examples, *model.prompts(40), *model.calibration(40)):
            assert model.objection(prompt) == ""
        assert model.makes in model.objection("quantum mechanics")


def test_dtype_is_taken():
    pipe = shipped_pipeline("eps", dtype=torch.bfloat16)
    assert pipe.unet.dtype == pipe.text_encoder.dtype == pipe.vae.dtype == torch.bfloat16


def test_picture_is_greyscale_pil(pipe):
    picture = pipe("a dark coat", num_inference_steps=1).images[0]
    assert (picture.mode, picture.size) == ("L", (32, 32))


def test_unknown_name_is_refused():
    with pytest.raises(THGError, match=r'no shipped model .sdxl.; write shipped_pipeline\("eps"\)'):
        shipped_pipeline("sdxl")


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(MissingExtraError, match="reinstall thg") as caught:
        load_folder(tmp_path / "nothing")
    assert str(tmp_path / "nothing") in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"_class_name": "NoSuchPipeline"}'])
def test_broken_index_is_an_error_of_one_line(tmp_path, content):
    (tmp_path / "model_index.json").write_text(content)
    with pytest.raises(THGError, match="is broken") as caught:
        load_folder(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_broken_weights_are_an_error_of_one_line(tmp_path, damage):
    folder = tmp_path / "eps"
    shutil.copytree(shipped_path("eps"), folder)
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(THGError, match="is broken") as caught:
        load_folder(folder)
    assert "\n" not in str(caught.value)
