"""The table of layouts is what its script makes of the installed diffusers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import diffusers
import pytest
import torch
from diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer import StableUnCLIPImageNormalizer
from transformers import CLIPTextModel, CLIPTextModelWithProjection

import thg
from tests.tiny_parts import WIDTH, WORDS, clip_text, clip_tokenizer, picture_vae, unet
from thg.pipelines.layouts import Batched, Refused, Sequential, known_layouts, layout_of

SCRIPT = Path(__file__).parents[2] / "docs" / "make_layouts.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_layouts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_that_of_its_version_of_diffusers(script: ModuleType) -> None:
    table = json.loads(script.TABLE.read_text(encoding="utf-8"))
    if table["diffusers"] != diffusers.__version__:
        pytest.skip(f"the table was made with diffusers {table['diffusers']}")
    rows = {name: (group["kind"], group["options"]) for group in table["groups"] for name in group["pipelines"]}
    assert rows == script.layouts()
    assert len(rows) > 250


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("e_uncond, e_text = out.chunk(2)", ("batched", ["uncond", "cond"])),
        ("e_text, e_neg = out.float().chunk(2)", ("batched", ["cond", "uncond"])),
        ("a = self.unet(x)\nneg = self.unet(y)", ("sequential", ["cond", "uncond"])),
        ("a = self.unet(x)", None),
    ],
)
def test_what_is_read_from_a_source(script: ModuleType, source: str, expected: tuple[str, list[str]] | None) -> None:
    row = script.read_layout(source, source)
    assert (row and (row[0], row[1]["branches"])) == expected


def test_a_run_that_has_shown_another_layout_is_an_error(script: ModuleType) -> None:
    rows = {"OnePipeline": ("batched", {"branches": ["uncond", "cond"]})}
    script.compare(
        rows, [{"pipeline": "OnePipeline", "checked": "one call: uncond, cond, w = 5"}, {"pipeline": "Other"}]
    )
    with pytest.raises(SystemExit, match="OnePipeline: the table says batched"):
        script.compare(rows, [{"pipeline": "OnePipeline", "checked": "a call for each: cond, uncond, w = 5"}])


def test_classes_and_those_derived_from_them() -> None:
    class Derived(diffusers.StableDiffusionPipeline):
        def __call__(self) -> None:
            """A loop of its own."""

    class Unguided(diffusers.DDPMPipeline):
        def __call__(self) -> None:
            """Guided, perhaps: nothing is known of it."""

    kinds = known_layouts()
    assert kinds["StableDiffusionPipeline"] == thg.Batched()
    assert kinds["WanPipeline"] == thg.Sequential()
    assert isinstance(kinds["DDPMPipeline"], Refused)
    assert {type(layout) for layout in kinds.values()} >= {Batched, Sequential}
    assert layout_of(Derived.__new__(Derived)) == thg.Batched()
    assert layout_of(Unguided.__new__(Unguided)) is None


def stable_unclip() -> diffusers.StableUnCLIPPipeline:
    tokenizer = clip_tokenizer()
    text = clip_text(tokenizer)
    torch.manual_seed(0)
    pipe = diffusers.StableUnCLIPPipeline(
        prior_tokenizer=tokenizer,
        prior_text_encoder=CLIPTextModelWithProjection(text),
        prior=diffusers.PriorTransformer(2, 8, 1, embedding_dim=WIDTH, num_embeddings=WORDS),
        prior_scheduler=diffusers.DDPMScheduler(prediction_type="sample"),
        image_normalizer=StableUnCLIPImageNormalizer(embedding_dim=WIDTH),
        image_noising_scheduler=diffusers.DDPMScheduler(),
        tokenizer=tokenizer,
        text_encoder=CLIPTextModel(text),
        unet=unet(class_embed_type="projection", projection_class_embeddings_input_dim=2 * WIDTH),
        scheduler=diffusers.DDIMScheduler(clip_sample=False),
        vae=picture_vae(),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_a_prior_with_a_scheduler_of_its_own_runs_in_full() -> None:
    pipe = stable_unclip()

    def latents() -> torch.Tensor:
        noise, size = torch.Generator().manual_seed(0), {"height": 32, "width": 32}
        torch.manual_seed(0)
        return pipe(
            "a bag", num_inference_steps=6, prior_num_inference_steps=3, generator=noise, output_type="latent", **size
        ).images

    plain = latents()
    with thg.enabled(pipe, thg.uniform(every=1)):
        torch.testing.assert_close(latents(), plain)
    with thg.enabled(pipe, thg.uniform(every=2)):
        fewer = latents()
        summary = thg.summary(pipe)
        assert torch.equal(latents(), fewer)
    assert (summary.evaluations, summary.note) == ((2, 1) * 3, "")
    assert summary.checked == "one call: uncond, cond, w = 10"
    assert not torch.equal(fewer, plain)
