"""The judge of sounds: a small classifier of log-mel spectrograms, trained on rendered sounds only.

It recognises the instrument, the register, the loudness and what is played, and gives the features for the Frechet
audio distance. It is independent of the model that it judges.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from thg.errors import THGError
from thg.models.sounds import FRAMES, KINDS, LOUDNESSES, MELS, REGISTERS, SOURCES, Sound, log_mel

SOUND_JUDGE_PATH: Final = Path(__file__).parent / "sound_judge.safetensors"
SOUND_REFERENCE_PATH: Final = Path(__file__).parent / "sound_reference.safetensors"
"""The mean (mu) and covariance (sigma) of the features of rendered sounds, for the Frechet audio distance."""

HEADS: Final = {"source": len(SOURCES), "register": len(REGISTERS), "loudness": len(LOUDNESSES), "kind": len(KINDS)}
"""The attributes of a sound, and how many values each has."""


class SoundJudgeNetwork(nn.Module):
    """Log-mels (n, FRAMES, MELS) to the logits of all attributes side by side, through 128 features."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (FRAMES // 8) * (MELS // 8), 128),
            nn.ReLU(),
        )
        self.head = nn.Linear(128, sum(HEADS.values()))

    def features(self, spectrograms: torch.Tensor) -> torch.Tensor:
        """The 128 values before the last layer."""
        values: torch.Tensor = self.trunk(spectrograms[:, None])
        return values

    def forward(self, spectrograms: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(spectrograms))
        return logits


@dataclass(frozen=True)
class SoundVerdict:
    """The judge's result for each sound: the index of each attribute's value, by HEADS, and the features."""

    found: dict[str, torch.Tensor]
    features: torch.Tensor

    def right(self, asked: Sequence[Sound]) -> dict[str, torch.Tensor]:
        """Whether each attribute is as asked, and "all" of them; the register of a drum is always right."""
        answers = {name: torch.tensor([_is(s, name, int(v)) for s, v in zip(asked, values, strict=True)])
                   for name, values in self.found.items()}  # fmt: skip
        return answers | {"all": torch.stack(list(answers.values())).all(0)}


def _is(sound: Sound, attribute: str, value: int) -> bool:
    asked = getattr(sound, attribute)
    return asked is None or asked == value


class SoundJudge:
    """The trained network."""

    def __init__(self, network: SoundJudgeNetwork, description: dict[str, float]):
        self.network = network.eval().requires_grad_(False)
        self.description = description

    @classmethod
    def load(cls, path: Path = SOUND_JUDGE_PATH) -> "SoundJudge":
        """Read the shipped judge, or another file of the same form."""
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
                description = json.loads((file.metadata() or {}).get("description", "{}"))
            network = SoundJudgeNetwork()
            network.load_state_dict(tensors)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise THGError(f"cannot load the judge of sounds from {path}: {error}; reinstall thg") from error
        return cls(network, description)

    @torch.inference_mode()
    def __call__(self, waves: torch.Tensor) -> SoundVerdict:
        """Judge waves (n, SAMPLES) in [-1, 1]."""
        return self.of_spectrograms(torch.cat([log_mel(batch.float()) for batch in torch.split(waves, 200)]))

    @torch.inference_mode()
    def of_spectrograms(self, spectrograms: torch.Tensor) -> SoundVerdict:
        """Judge log-mels (n, FRAMES, MELS), such as those that a vocoder gets."""
        features = torch.cat([self.network.features(batch) for batch in torch.split(spectrograms, 200)])
        logits = self.network.head(features).split(list(HEADS.values()), dim=1)
        return SoundVerdict({name: part.argmax(1) for name, part in zip(HEADS, logits, strict=True)}, features)
