"""CLIP score and CMMD: does the picture fit its text, and are the pictures as a set like the references?"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image

from thg.bench.metrics.base import Embedder, MeanMetric
from thg.bench.metrics.batch import Batch
from thg.bench.metrics.hub import from_hub, image_processor_class, load_model, pooled, transformers_class
from thg.bench.metrics.kernel import KernelMetric, gaussian_kernel, mmd_biased

CLIP_SCORE_MODEL = "openai/clip-vit-large-patch14"
"""The default of TorchMetrics' CLIPScore, which the paper used."""
CMMD_MODEL = "openai/clip-vit-large-patch14-336"
CMMD_SIGMA = 10.0
CMMD_SCALE = 1000.0


class CLIPScore(MeanMetric):
    """max(100 cos(E_I, E_C), 0) of Hessel et al. (2021), averaged over pictures. Longer texts are cut to fit CLIP."""

    name = "clip_score"
    direction = "higher"
    needs = frozenset({"prompts"})

    def __init__(self, model: Any, processor: Any, tokenizer: Any, device: str = "cpu"):
        super().__init__()
        self._model, self._processor, self._tokenizer, self._device = model, processor, tokenizer, device

    def score(self, batch: Batch) -> torch.Tensor:
        pixels = self._processor(images=batch.pil_pictures(), return_tensors="pt")
        longest = self._model.config.text_config.max_position_embeddings
        tokens = self._tokenizer(
            list(batch.prompts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        image = pooled(self._model.get_image_features(pixel_values=pixels["pixel_values"].to(self._device)))
        text = pooled(
            self._model.get_text_features(
                input_ids=tokens["input_ids"].to(self._device), attention_mask=tokens["attention_mask"].to(self._device)
            )
        )
        return (100 * F.cosine_similarity(image, text)).clamp(min=0)


def load_clip_score(source: str = CLIP_SCORE_MODEL, device: str = "cpu") -> CLIPScore:
    """CLIP score with a CLIPModel from a hub id or a folder."""
    model = load_model("CLIPModel", source, "CLIP score", device)
    processor = from_hub(
        image_processor_class("CLIPImageProcessor", "CLIP score").from_pretrained, source, "CLIP score"
    )
    tokenizer = from_hub(transformers_class("AutoTokenizer", "CLIP score").from_pretrained, source, "CLIP score")
    return CLIPScore(model, processor, tokenizer, device)


class CMMD(KernelMetric):
    """1000 times the biased MMD with a Gaussian kernel of width 10 (Jayasumana et al., 2024), on unit CLIP embeddings.

    Computed in float64; the public implementations round to float32, that is to about 1e-4.
    """

    name = "cmmd"

    def distance(self, samples: torch.Tensor, references: torch.Tensor) -> float:
        return CMMD_SCALE * mmd_biased(samples, references, gaussian_kernel(CMMD_SIGMA))


def load_cmmd_embedder(source: str = CMMD_MODEL, device: str = "cpu") -> Embedder:
    """Unit CLIP embeddings of the pictures' central squares."""
    model = load_model("CLIPVisionModelWithProjection", source, "CMMD", device)
    processor = from_hub(image_processor_class("CLIPImageProcessor", "CMMD").from_pretrained, source, "CMMD")

    def embed(batch: Batch) -> torch.Tensor:
        squares = [central_square(picture) for picture in batch.pil_pictures()]
        pixels = processor(images=squares, return_tensors="pt")["pixel_values"].to(device)
        return F.normalize(model(pixel_values=pixels).image_embeds, dim=-1)

    return embed


def central_square(picture: Image.Image) -> Image.Image:
    """The largest square in the middle, as CMMD's authors cut it before resizing."""
    width, height = picture.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return picture.crop((left, top, left + side, top + side))
