"""The judge: a small classifier, trained on real pictures only, for generated pictures.

It gives the garment (by a network), the tone (by comparing brightness with thresholds from real pictures) and the
features for the Frechet distance. It is independent of the models that it judges.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from thg.errors import THGError
from thg.models.garments import GARMENTS, brightness

JUDGE_PATH: Final = Path(__file__).parent / "judge.safetensors"

BORDERS_KEY: Final = "tone_borders"


class JudgeNetwork(nn.Module):
    """Pictures (n, 1, 32, 32) in [-1, 1] to logits of the ten garments, through 128 features."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
        )
        self.head = nn.Linear(128, len(GARMENTS))

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """The 128 values before the last layer."""
        values: torch.Tensor = self.trunk(pictures)
        return values

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(pictures))
        return logits


@dataclass(frozen=True)
class Verdict:
    """The judge's result for each picture: indices into GARMENTS and TONES, and the features."""

    garments: torch.Tensor
    tones: torch.Tensor
    features: torch.Tensor


class Judge:
    """The trained network and the brightness thresholds between the tones."""

    def __init__(self, network: JudgeNetwork, tone_borders: torch.Tensor, description: dict[str, float]):
        self.network = network.eval().requires_grad_(False)
        self.tone_borders = tone_borders
        self.description = description

    @classmethod
    def load(cls, path: Path = JUDGE_PATH) -> "Judge":
        """Read the shipped judge, or another file of the same form."""
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
                description = json.loads((file.metadata() or {}).get("description", "{}"))
            borders = tensors.pop(BORDERS_KEY)
            network = JudgeNetwork()
            network.load_state_dict(tensors)
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise THGError(f"cannot load the judge from {path}: {error}; reinstall thg") from error
        return cls(network, borders, description)

    @torch.inference_mode()
    def __call__(self, pictures: torch.Tensor, asked: torch.Tensor | None = None) -> Verdict:
        """Judge pictures (n, 1, 32, 32) in [-1, 1].

        A tone is relative to its garment (a third of all real coats is dark): the garment that was `asked` for, or the
        recognised one by default.
        """
        batches = [self.network.features(batch) for batch in torch.split(pictures.float().clamp(-1, 1), 500)]
        features = torch.cat(batches)
        garments = self.network.head(features).argmax(1)
        borders = self.tone_borders[garments if asked is None else asked]
        tones = (brightness(pictures.float())[:, None] > borders).sum(1)
        return Verdict(garments, tones, features)
