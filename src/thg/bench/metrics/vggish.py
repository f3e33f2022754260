"""FAD: the Frechet distance of sounds in the features of VGGish (Kilgour et al., 2019).

VGGish (Hershey et al., 2017) takes mono sound at 16 kHz as log-mel spectrograms of 0.96 s, 96 frames of 64 bands, and
gives 128 numbers for each. As in the evaluations of AudioLDM, its last ReLU and the PCA of its first release are left
out.

Weights: `vggish-10086976.pth` of torchvggish, or the same tensors (`features.0.weight` ... `embeddings.4.bias`) as
safetensors.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from thg.bench.metrics.base import Embedder
from thg.bench.metrics.batch import Batch
from thg.bench.metrics.frechet import FrechetMetric
from thg.bench.metrics.weights import cache_folder, load_into, read_tensors, require_file
from thg.errors import MissingExtraError

FILE_NAME = "vggish-10086976.pth"
HOW_TO_GET = "Download it once from the v0.1 release of github.com/harritaylor/torchvggish."
RATE = 16_000
WINDOW, HOP, FFT = 400, 160, 512
"""25 ms every 10 ms, padded to the next power of two."""
BANDS, LOWEST, HIGHEST = 64, 125.0, 7500.0
LOG_OFFSET = 0.01
FRAMES = 96


class FAD(FrechetMetric):
    """Frechet audio distance. A sound shorter than 0.975 s gives no spectrogram and is not counted."""

    name = "fad"
    stored_as = "vggish"

    def measure(self, batch: Batch) -> list[torch.Tensor]:
        """One row for each 0.96 s of a sound."""
        with torch.inference_mode():
            return [self._embed(sound).float().cpu() for sound in batch.singles()]


def mel(hertz: torch.Tensor) -> torch.Tensor:
    """HTK's mel scale."""
    return 1127.0 * torch.log1p(hertz / 700.0)


def mel_weights() -> torch.Tensor:
    """(bins, bands): triangles, linear in mel, with peak one; the constant bin is left out."""
    bins = mel(torch.linspace(0, RATE / 2, FFT // 2 + 1, dtype=torch.float64))[:, None]
    edges = mel(torch.tensor([LOWEST, HIGHEST], dtype=torch.float64))
    corners = torch.linspace(float(edges[0]), float(edges[1]), BANDS + 2, dtype=torch.float64)
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    weights = torch.minimum((bins - left) / (peak - left), (right - bins) / (right - peak)).clamp(min=0)
    weights[0] = 0
    return weights


def log_mel_pictures(sound: torch.Tensor) -> torch.Tensor:
    """One mono sound at 16 kHz as (pictures, 1, 96, 64); what does not fill a window or a picture is dropped."""
    if len(sound) < WINDOW:
        return torch.empty(0, 1, FRAMES, BANDS)
    step = torch.arange(WINDOW, dtype=torch.float64)
    hann = 0.5 - 0.5 * torch.cos(2 * math.pi * step / WINDOW)
    frames = sound.double().unfold(0, WINDOW, HOP) * hann
    spectrum = torch.fft.rfft(frames, n=FFT).abs()
    bands = torch.log(spectrum @ mel_weights() + LOG_OFFSET)
    whole = len(bands) // FRAMES * FRAMES
    return bands[:whole].reshape(-1, 1, FRAMES, BANDS).float()


class VGGish(nn.Module):
    """Log-mel pictures in, 128 numbers each out; layers numbered as in torchvggish's weights file."""

    def __init__(self, hidden: int = 4096) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 1
        for block in ((64,), (128,), (256, 256), (512, 512)):
            for channels in block:
                layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
                before = channels
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.embeddings = nn.Sequential(
            nn.Linear(512 * 6 * 4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 128)
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features = self.features(pictures).permute(0, 2, 3, 1)  # the original network keeps channels last
        embeddings: torch.Tensor = self.embeddings(features.flatten(1))
        return embeddings


def load_vggish(path: Path | None = None, device: str = "cpu") -> Embedder:
    """VGGish's rows for sounds, one for each 0.96 s; `path` defaults to the cache folder."""
    path = require_file(path or cache_folder() / FILE_NAME, "FAD", HOW_TO_GET)
    tensors = read_tensors(path)
    if "embeddings.0.bias" not in tensors:
        raise MissingExtraError(f"{path} holds the weights of another network, not VGGish's. {HOW_TO_GET}")
    network = VGGish(hidden=len(tensors["embeddings.0.bias"]))
    load_into(network, tensors, path)
    network.eval().to(device)

    def embed(batch: Batch) -> torch.Tensor:
        pictures = torch.cat([log_mel_pictures(sound) for sound in batch.sounds_at(RATE)])
        rows: torch.Tensor = network(pictures.to(device))
        return rows

    return embed
