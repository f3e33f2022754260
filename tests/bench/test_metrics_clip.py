"""CLIP score and CMMD on a tiny CLIP of the real class, saved and loaded as from the hub."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.bench.tiny_models import save_clip
from thg.bench.metrics import Batch, MetricError
from thg.bench.metrics.clip import CMMD, central_square, load_clip_score, load_cmmd_embedder
from thg.errors import MissingExtraError

PROMPTS = ("a red dog", "the cat", "a photo of the rain that falls and falls on the dog")
MEAN, STD = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clip"))


def pictures(height=30, width=40):
    return torch.randint(0, 256, (3, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def prepared(picture: Image.Image) -> np.ndarray:
    """Shorter side to 24 by PIL's bicubic filter, central square, CLIP's colours."""
    width, height = picture.size
    scale = 24 / min(width, height)
    resized = picture.resize((int(width * scale), int(height * scale)), Image.Resampling.BICUBIC)
    left, top = (resized.width - 24) // 2, (resized.height - 24) // 2
    values = np.asarray(resized.crop((left, top, left + 24, top + 24))) / 255
    return ((values - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)


def test_clip_score_against_the_models_own_logits(folder):
    from transformers import AutoTokenizer, CLIPModel

    metric = load_clip_score(str(folder))
    batch = Batch(pictures(), prompts=PROMPTS)
    model, tokenizer = CLIPModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    pixels = torch.from_numpy(np.stack([prepared(picture) for picture in batch.pil_pictures()]))
    cosines = []
    for pixel, prompt in zip(pixels, PROMPTS, strict=True):
        tokens = tokenizer(prompt, truncation=True, max_length=12, return_tensors="pt")
        with torch.no_grad():
            cosines.append(float(model(pixel_values=pixel[None], **tokens).logits_per_image / model.logit_scale.exp()))
    for sign in (1, -1):  # with the texts' embeddings turned round, what was below zero is above
        found = metric.fresh()
        found.update(batch)
        expected = [max(100 * sign * cosine, 0) for cosine in cosines]
        assert found.rows().tolist() == pytest.approx(expected, abs=1e-3)
        metric._model.text_projection.weight.data.neg_()
    assert all(abs(100 * cosine) > 0.1 for cosine in cosines), "a case that tells something"


def test_clip_score_needs_prompts(folder):
    with pytest.raises(MetricError, match="prompts="):
        load_clip_score(str(folder)).update(Batch(pictures()))


def test_cmmd_embeddings_are_unit_vectors_of_central_squares(folder):
    from transformers import CLIPVisionModelWithProjection

    batch = Batch(pictures())
    with torch.no_grad():
        rows = load_cmmd_embedder(str(folder))(batch)
        squares = [picture.crop((5, 0, 35, 30)) for picture in batch.pil_pictures()]
        pixels = torch.from_numpy(np.stack([prepared(square) for square in squares]))
        expected = CLIPVisionModelWithProjection.from_pretrained(folder).eval()(pixel_values=pixels).image_embeds
    expected = expected / np.linalg.norm(expected.numpy(), axis=1, keepdims=True)
    torch.testing.assert_close(rows, expected, atol=2e-5, rtol=1e-4)


def test_cmmd_of_a_set_with_itself_is_zero(folder):
    metric = CMMD(load_cmmd_embedder(str(folder)))
    metric.add_reference(Batch(pictures()))
    metric.update(Batch(pictures()))
    assert metric.compute() == pytest.approx(0, abs=1e-9)


def test_central_square():
    assert central_square(Image.new("RGB", (7, 4))).size == (4, 4)
    picture = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(6, 2))
    assert np.asarray(central_square(picture)).tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize("load", [load_clip_score, load_cmmd_embedder])
def test_a_missing_model_is_named(load, tmp_path):
    with pytest.raises(MissingExtraError, match="hf download thg-tests/absent-clip"):
        load("thg-tests/absent-clip")
    with pytest.raises(MissingExtraError, match="nothing-here"):
        load(str(tmp_path / "nothing-here"))
