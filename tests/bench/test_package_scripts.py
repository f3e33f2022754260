"""CLIP score and CMMD, as the packages measure them, on a tiny CLIP of the real class, saved as the hub has it."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.bench.tiny_models import save_clip
from thg.bench.metrics import package_scripts

PROMPTS = ["a red dog", "the cat", "a photo of the rain"]
MEAN, STD = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Three samples and four references."""
    home, generator, paths = tmp_path_factory.mktemp("files"), np.random.default_rng(0), []
    for number in range(7):
        paths.append(str(home / f"{number}.png"))
        Image.fromarray(generator.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(paths[-1])
    network = str(save_clip(tmp_path_factory.mktemp("clip")))
    return {"samples": paths[:3], "references": paths[3:], "plain": [], "prompts": PROMPTS, "network": network}


def prepared(picture: Image.Image) -> np.ndarray:
    """Shorter side to 24 by PIL's bicubic filter, central square, CLIP's colours."""
    scale = 24 / min(picture.size)
    resized = picture.resize([int(side * scale) for side in picture.size], Image.Resampling.BICUBIC)
    left, top = (resized.width - 24) // 2, (resized.height - 24) // 2
    values = np.asarray(resized.crop((left, top, left + 24, top + 24))) / 255
    return ((values - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)


def test_cmmd_is_a_double_loop_over_unit_embeddings(job):
    from transformers import CLIPVisionModelWithProjection

    def embedded(paths):
        squares = [Image.open(path).crop((5, 0, 35, 30)) for path in paths]
        pixels = torch.from_numpy(np.stack([prepared(square) for square in squares]))
        with torch.no_grad():
            rows = CLIPVisionModelWithProjection.from_pretrained(job["network"]).eval()(pixel_values=pixels)
        return torch.nn.functional.normalize(rows.image_embeds, dim=-1).double().numpy()

    def mean(first, second):
        return np.mean([np.exp(-np.sum((a - b) ** 2) / 200) for a in first for b in second])

    x, y = embedded(job["samples"]), embedded(job["references"])
    expected = 1000 * (mean(x, x) + mean(y, y) - 2 * mean(x, y))
    assert package_scripts.cmmd(job) == [pytest.approx(expected, rel=1e-3)]
    assert package_scripts.cmmd({**job, "references": job["samples"]}) == [pytest.approx(0, abs=1e-6)]


def test_clip_score_is_the_cosine_of_the_models_embeddings(job):
    from transformers import AutoTokenizer, CLIPModel

    model, tokenizer = CLIPModel.from_pretrained(job["network"]).eval(), AutoTokenizer.from_pretrained(job["network"])
    expected = []
    for path, prompt in zip(job["samples"], PROMPTS, strict=True):
        pixels = torch.from_numpy(prepared(Image.open(path)))[None]
        tokens = tokenizer(prompt, truncation=True, max_length=12, return_tensors="pt")
        with torch.no_grad():
            logits = model(pixel_values=pixels, **tokens).logits_per_image / model.logit_scale.exp()
        expected.append(max(100 * float(logits), 0))
    assert package_scripts.clip_score(job) == pytest.approx(expected, abs=1e-2)
