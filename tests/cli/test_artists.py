"""What artists have: single files, LoRA, a picture to start from, half-precision variants."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPTextModel, CLIPTextModelWithProjection

import thg
from tests.cli.original_layout import single_file
from tests.studio.conftest import command_model
from tests.studio.tiny import tiny_stable_diffusion
from tests.tiny_parts import WIDTH, clip_text, clip_tokenizer, picture_vae, unet
from thg.cli import main
from thg.models import shipped_path
from thg.models.pretrained import Source

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")
FEW = ["--steps", "4", "--force", "--model", "eps"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The shipped model as one file in the original layout."""
    path = tmp_path_factory.mktemp("single") / "my.safetensors"
    save_file(single_file(thg.shipped_pipeline("eps")), path)
    return path


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Its configuration, without weights."""
    folder = tmp_path_factory.mktemp("config") / "eps"
    shutil.copytree(shipped_path("eps"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.fixture(scope="module")
def style(tmp_path_factory):
    """A LoRA of the shipped model, with random weights."""
    folder = tmp_path_factory.mktemp("lora")
    pipe = thg.shipped_pipeline("eps")
    torch.manual_seed(0)
    pipe.unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights="gaussian"))
    for name, parameter in pipe.unet.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    layers = get_peft_model_state_dict(pipe.unet)
    StableDiffusionPipeline.save_lora_weights(folder, layers, weight_name="style.safetensors")
    return folder / "style.safetensors"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(*words, name="out.png") -> np.ndarray:
    """The picture of a command, as numbers."""
    assert main(["generate", "a dark coat", *FEW, "-o", name, *map(str, words)]) == 0
    with Image.open(name) as picture:
        return np.asarray(picture, dtype=int)


def refused(capsys, *words) -> str:
    assert main(["generate", "a dark coat", *FEW, *map(str, words)]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_single_file_gives_the_same_pictures(here, checkpoint, config):
    plain = made("--guidance-scale", "5")
    assert (made("--model", checkpoint, "--config", config, "--guidance-scale", "5") == plain).all()


def xl() -> StableDiffusionXLPipeline:
    """As in Stable Diffusion XL, the second text encoder is wider, and its file has another layout."""
    tokenizer = clip_tokenizer()
    first, second = clip_text(tokenizer, layers=2), clip_text(tokenizer, layers=2)
    second.hidden_size = second.projection_dim = 2 * WIDTH
    torch.manual_seed(0)
    network = unet(
        cross_attention_dim=3 * WIDTH,
        addition_embed_type="text_time",
        addition_time_embed_dim=2,
        projection_class_embeddings_input_dim=6 * 2 + 2 * WIDTH,
    )
    return StableDiffusionXLPipeline(
        vae=picture_vae(),
        text_encoder=CLIPTextModel(first),
        text_encoder_2=CLIPTextModelWithProjection(second),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=network,
        scheduler=EulerDiscreteScheduler(),
        add_watermarker=False,
    )


def same_networks(pipe, other) -> bool:
    for name, network in pipe.components.items():
        if isinstance(network, torch.nn.Module):
            mine, theirs = network.state_dict(), getattr(other, name).state_dict()
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    return type(pipe) is type(other)


def test_a_single_file_of_stable_diffusion_xl(tmp_path):
    pipe = xl()
    pipe.save_pretrained(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "config", ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(single_file(pipe), tmp_path / "xl.safetensors")
    found = Source(str(tmp_path / "xl.safetensors"), config=str(tmp_path / "config"), device="cpu").load()
    assert same_networks(found, pipe)


def test_a_single_file_without_text_encoders_gets_those_of_the_configuration(here, tmp_path, capsys):
    """As files of Stable Diffusion 3.5 and Flux are shared."""
    pipe = thg.shipped_pipeline("flow")
    path = tmp_path / "sd3.safetensors"
    save_file(single_file(pipe), path)
    model = command_model("--model", str(path), "--config", str(shipped_path("flow")))
    assert same_networks(model.pipe, pipe)
    scope: dict = {"torch": torch}
    exec("\n".join(model.source), scope)
    assert same_networks(scope["pipe"], pipe)
    config = tmp_path / "config"
    shutil.copytree(shipped_path("flow"), config, ignore=shutil.ignore_patterns("*.safetensors"))
    said = refused(capsys, "--model", path, "--config", config)
    assert "has no text_encoder and no text_encoder_2, and" in said
    assert "write --config FOLDER, a complete diffusers model of the same kind" in said


def test_a_single_file_says_what_it_needs(here, checkpoint, config, style, capsys):
    assert main(["generate", "a dark coat", *FEW, "--model", str(checkpoint)]) == 2
    loading, said = capsys.readouterr().err.splitlines()  # and no warning of the hub's client
    assert loading.startswith("thg generate: loading")
    assert "needs the configuration" in said
    assert "stable-diffusion-v1-5/stable-diffusion-v1-5" in said
    assert "--config FOLDER" in said
    assert "cannot be loaded as StableDiffusion3Pipeline" in refused(
        capsys, "--model", checkpoint, "--config", shipped_path("flow")
    )
    assert f"--model MODEL --lora {style}" in refused(capsys, "--model", style)
    assert "there is no file none.safetensors" in refused(capsys, "--model", "none.safetensors")
    assert "may hold a pickle" in refused(capsys, "--model", "old.ckpt")
    (here / "half.safetensors").write_bytes(checkpoint.read_bytes()[:1000])
    assert "half.safetensors is not a complete safetensors file" in refused(capsys, "--model", "half.safetensors")
    part = shipped_path("eps") / "unet" / "diffusion_pytorch_model.safetensors"
    assert f"{part} is not the file of a whole model" in refused(capsys, "--model", part)
    assert "--config is the configuration of a single file" in refused(capsys, "--config", config)
    assert "--variant names weight files of a folder" in refused(capsys, "--variant", "fp16")


def test_pickles_beside_a_configuration_are_refused(here, checkpoint, config, capsys):
    shutil.copytree(config, "pickled")
    (here / "pickled" / "text_encoder" / "pytorch_model.bin").write_bytes(b"anything")
    assert "pytorch_model.bin is a pickle" in refused(capsys, "--model", checkpoint, "--config", "pickled")


def test_a_lora_and_its_scale(here, style):
    plain = made()
    pipe = thg.shipped_pipeline("eps")
    pipe.load_lora_weights(str(style.parent), weight_name=style.name, adapter_name="style")
    pipe.set_adapters("style", 0.5)
    thg.enable(pipe)
    expected = pipe(
        "a dark coat", num_inference_steps=4, guidance_scale=5.0, generator=torch.Generator().manual_seed(0)
    ).images[0]
    half = made("--lora", f"{style}:0.5")
    assert abs(half - np.asarray(expected, dtype=int)).max() <= 1
    assert abs(half - plain).max() > 20
    assert abs(made("--lora", style) - half).max() > 20
    assert (made("--lora", f"{style}:0") == plain).all()
    with Image.open("out.png") as picture:
        assert json.loads(picture.text["thg"])["lora"] == [["style.safetensors", 0.0]]


def test_a_lora_of_another_model_is_refused(here, style, capsys):
    assert "has no weights for StableDiffusion3Pipeline" in refused(capsys, "--model", "flow", "--lora", style)
    other = {name.replace("unet.", "nothing."): value for name, value in load_file(style).items()}
    save_file(other, "other.safetensors")
    assert "made for another kind of model" in refused(capsys, "--lora", "other.safetensors")
    assert "there is no file none.safetensors" in refused(capsys, "--lora", "none.safetensors:0.3")
    with pytest.raises(SystemExit, match="2"):
        refused(capsys, "--lora", "none.safetensors:0,3")
    assert "must be a number, such as 0.8, not 0,3" in capsys.readouterr().err


def test_from_a_picture(here, capsys):
    start = made("--steps", "20", name="start.png")
    near = made("--image", "start.png", "--strength", "0.2", "--steps", "20")
    far = made("--image", "start.png", "--strength", "1", "--steps", "20", "--seed", "5")
    assert np.abs(near - start).mean() < np.abs(far - start).mean()
    with Image.open("out.png") as picture:
        how = json.loads(picture.text["thg"])
    assert (how["image"], how["strength"]) == ("start.png", 1.0)
    assert made("--image", "start.png", "--model", "flow", "--width", "16").shape[:2] == (32, 16)
    (here / "text.png").write_text("no picture")
    assert "--image text.png is not a picture" in refused(capsys, "--image", "text.png")
    assert "--strength is how much of a picture may change: write --image" in refused(capsys, "--strength", "0.5")
    none = refused(capsys, "--image", "start.png", "--strength", "0.04", "--steps", "20")
    assert "--strength 0.04 leaves none of 20 steps; write more of it, or more --steps" in none


def test_one_side_alone(here, capsys):
    """Pipelines of diffusers take both sides or none."""
    assert made("--width", "64").shape[:2] == (32, 64)
    assert made("--height", "16").shape[:2] == (16, 32)
    assert "refuses this call" in refused(capsys, "--width", "13")
    assert "--image none.png: No such file" in refused(capsys, "--image", "none.png", "--model", "nothing-either")


def test_half_precision_files_of_a_folder(here, tmp_path, capsys):
    half = tiny_stable_diffusion().to(torch.float16)
    half.save_pretrained("half")
    half.save_pretrained("named", variant="fp16")
    picture = made("--model", "named", "--variant", "fp16")
    assert (picture == made("--model", "half")).all()
    assert picture.std() > 0
    assert "cannot be loaded" in refused(capsys, "--model", "named")  # it has no other files


def test_the_studios_script_loads_the_same(checkpoint, config, style):
    model = command_model("--model", str(checkpoint), "--config", str(config), "--lora", f"{style}:0.5")
    scope: dict = {"torch": torch}
    exec("\n".join(model.source), scope)
    assert type(scope["pipe"]) is type(model.pipe)
    mine, theirs = model.pipe.unet.state_dict(), scope["pipe"].unet.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert scope["pipe"].get_active_adapters() == ["lora_0"]
