"""CLIP score and CMMD, on CLIP models of transformers: does the picture fit its text, and the set the references?

CMMD is implemented here because no package on PyPI has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image

from thg.bench.metrics.base import Batch, Embedder, MeanMetric
from thg.bench.metrics.distribution import KernelMetric, gaussian_kernel, mmd
from thg.distribution import missing
from thg.errors import MissingExtraError

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
        pixels = self._processor(images=batch.pil_pictures(), return_tensors="pt").to(self._device)
        longest = self._model.config.text_config.max_position_embeddings
        tokens = self._tokenizer(
            list(batch.prompts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        ).to(self._device)
        image = _pooled(self._model.get_image_features(pixel_values=pixels["pixel_values"]))
        text = _pooled(
            self._model.get_text_features(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
        )
        return (100 * F.cosine_similarity(image, text)).clamp(min=0)


def load_clip_score(source: str = CLIP_SCORE_MODEL, device: str = "cpu") -> CLIPScore:
    """CLIP score with a CLIPModel from a hub id or a folder."""
    model = _from_hub("CLIPModel", source, "CLIP score").eval().to(device)
    tokenizer = _from_hub("AutoTokenizer", source, "CLIP score")
    return CLIPScore(model, _from_hub("CLIPImageProcessor", source, "CLIP score"), tokenizer, device)


class CMMD(KernelMetric):
    """1000 times the biased MMD with a Gaussian kernel of width 10 (Jayasumana et al., 2024), on unit CLIP embeddings.

    Computed in float64; the public implementations round to float32, that is to about 1e-4.
    """

    name = "cmmd"

    def distance(self, samples: torch.Tensor, references: torch.Tensor) -> float:
        return CMMD_SCALE * mmd(samples, references, gaussian_kernel(CMMD_SIGMA), unbiased=False)


def load_cmmd_embedder(source: str = CMMD_MODEL, device: str = "cpu") -> Embedder:
    """Unit CLIP embeddings of the pictures' central squares."""
    model = _from_hub("CLIPVisionModelWithProjection", source, "CMMD").eval().to(device)
    processor = _from_hub("CLIPImageProcessor", source, "CMMD")

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


def _from_hub(class_name: str, source: str, metric: str) -> Any:
    """An object of a class of transformers from a hub id or a folder, or the error that says what is missing."""
    try:
        import transformers
    except ImportError as error:
        raise missing(metric, "diffusers") from error
    # transformers 5 has the processor that resizes with PIL under a separate name
    cls = getattr(transformers, f"{class_name}Pil", None) or getattr(transformers, class_name)
    load: Callable[[str], Any] = cls.from_pretrained
    try:
        return load(source)
    except (OSError, ValueError, ImportError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingExtraError(
            f"{metric} needs the model {source}, which could not be loaded ({cause}). "
            f"Download it once with: hf download {source}"
        ) from error


def _pooled(features: Any) -> torch.Tensor:
    """The embeddings: transformers 5 returns them in an output object, 4 as a tensor."""
    embeddings: torch.Tensor = getattr(features, "pooler_output", features)
    return embeddings
