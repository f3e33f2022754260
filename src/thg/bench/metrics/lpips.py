"""LPIPS: the distance of two pictures in the layers of a classifier (Zhang et al., 2018, equation 1).

The weights are those of the authors, in one safetensors file: `features.*` of torchvision's AlexNet or VGG-16 and the
heads `lin0.model.1.weight` ... of the `lpips` package. To make it from the two downloads (neither package is needed):

    python -m thg.bench.metrics lpips alexnet-owt-7be5be79.pth alex.pth
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from thg.bench.metrics.base import MeanMetric
from thg.bench.metrics.batch import Batch
from thg.bench.metrics.weights import cache_folder, load_into, read_tensors, require_file
from thg.errors import MissingExtraError
from thg.files import atomic_target

FILE_NAME = "lpips-alex.safetensors"
HOW_TO_GET = (
    "Make it once from torchvision's AlexNet (https://download.pytorch.org/models/alexnet-owt-7be5be79.pth) and "
    "lpips/weights/v0.1/alex.pth of the lpips package: python -m thg.bench.metrics lpips ALEXNET HEADS"
)
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
"""Of the authors' code: ImageNet's colour statistics for pixels in [-1, 1]."""
NORM_EPSILON = 1e-10


def alexnet_layers() -> nn.Sequential:
    """The convolutions of torchvision's AlexNet, numbered as there."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()),
    )


def vgg16_layers() -> nn.Sequential:
    """The convolutions of torchvision's VGG-16 up to its last ReLU, numbered as there."""
    layers: list[nn.Module] = []
    before = 3
    for block in ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3):
        for channels in block:
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers[:-1])


ALEXNET_TAPS = (1, 4, 7, 9, 11)
VGG16_TAPS = (3, 8, 15, 22, 29)
"""The ReLUs whose output is compared."""


class PerceptualDistance(nn.Module):
    """Sum over layers of the mean over positions of w . (a/|a| - b/|b|)^2, with the weights w of the layer's head."""

    def __init__(self, features: nn.Sequential, taps: tuple[int, ...], heads: list[torch.Tensor]):
        super().__init__()
        self.features = features
        self.taps = taps
        for number, head in enumerate(heads):
            self.register_buffer(f"head{number}", head.reshape(1, -1, 1, 1))
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """One number per pair; pixels in [0, 1]."""
        layers = zip(self._unit_features(first), self._unit_features(second), strict=True)
        distances = [
            ((a - b).square() * self.get_buffer(f"head{number}")).sum(1).mean((1, 2))
            for number, (a, b) in enumerate(layers)
        ]
        return torch.stack(distances).sum(0)

    def _unit_features(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        x = (2 * pictures.expand(-1, 3, -1, -1) - 1 - self.get_buffer("shift")) / self.get_buffer("scale")
        units = []
        for number, layer in enumerate(self.features):
            x = layer(x)
            if number in self.taps:
                units.append(x / (x.square().sum(1, keepdim=True).sqrt() + NORM_EPSILON))
        return units


class LPIPS(MeanMetric):
    """Learned perceptual distance to plain CFG's picture. Lower is better."""

    name = "lpips"
    direction = "lower"
    needs = frozenset({"pairs"})

    def __init__(self, distance: PerceptualDistance, device: str = "cpu"):
        super().__init__()
        self._distance = distance.eval().to(device)
        self._device = device

    def score(self, batch: Batch) -> torch.Tensor:
        scores: torch.Tensor = self._distance(
            batch.pictures().to(self._device), batch.reference_pictures().to(self._device)
        )
        return scores


def load_lpips(path: Path | None = None, device: str = "cpu") -> LPIPS:
    """LPIPS from a weights file; `path` defaults to the cache folder."""
    path = require_file(path or cache_folder() / FILE_NAME, "LPIPS", HOW_TO_GET)
    tensors = read_tensors(path)
    heads = [tensors.pop(name) for name in sorted(tensors) if name.startswith("lin")]
    if len(heads) != len(ALEXNET_TAPS):
        raise MissingExtraError(f"{path} has {len(heads)} heads lin*.model.1.weight, LPIPS has 5. {HOW_TO_GET}")
    first = tensors.get("features.0.weight", torch.empty(0))
    is_alexnet = first.shape[-1:] == (11,)
    features, taps = (alexnet_layers(), ALEXNET_TAPS) if is_alexnet else (vgg16_layers(), VGG16_TAPS)
    load_into(features, {name.removeprefix("features."): tensor for name, tensor in tensors.items()}, path)
    return LPIPS(PerceptualDistance(features, taps, heads), device)


def pack(backbone: Path, heads: Path, target: Path | None = None) -> Path:
    """Write the one file that `load_lpips` reads from torchvision's backbone and the authors' heads."""
    target = target or cache_folder() / FILE_NAME
    tensors = {name: tensor for name, tensor in read_tensors(backbone).items() if name.startswith("features.")}
    tensors |= {name: tensor for name, tensor in read_tensors(heads).items() if name.startswith("lin")}
    with atomic_target(target) as part:
        part.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}))
        load_lpips(part)
    return target
