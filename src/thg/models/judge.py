"""The judges of the shipped models: small networks, trained on real pictures and rendered sounds only.

Each says how well a result shows its prompt, and gives the features for a Frechet distance. They are independent of the
models that they judge (the emoji judge shares its tokenizer with the model).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from thg.distribution import missing
from thg.errors import THGError
from thg.models.garments import GARMENTS, brightness
from thg.models.sounds import FRAMES, KINDS, LOUDNESSES, MELS, REGISTERS, SOURCES, Sound, log_mel

HERE: Final = Path(__file__).parent
JUDGE_PATH: Final = HERE / "judge.safetensors"
EMOJI_JUDGE_PATH: Final = HERE / "emoji_judge.safetensors"
SOUND_JUDGE_PATH: Final = HERE / "sound_judge.safetensors"
EMOJI_REFERENCE_PATH: Final = HERE / "emoji_reference.safetensors"
SOUND_REFERENCE_PATH: Final = HERE / "sound_reference.safetensors"
"""The mean (mu) and covariance (sigma) of the features of real pictures, of rendered sounds."""

BORDERS_KEY: Final = "tone_borders"
WIDTH: Final = 128  # of all features
MAX_TOKENS: Final = 24
HEADS: Final = {"source": len(SOURCES), "register": len(REGISTERS), "loudness": len(LOUDNESSES), "kind": len(KINDS)}
"""The attributes of a sound, and how many values each has."""


@contextmanager
def _loading(path: Path, of: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise THGError(f"cannot load the judge{of} from {path}: {error}; reinstall thg") from error


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a judge's file."""
    return {name: tensor.float() for name, tensor in load_file(path).items()}


class _Classifier(nn.Module):
    """Logits through 128 features."""

    def __init__(self, trunk: nn.Module, classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(WIDTH, classes)

    def features(self, inputs: Tensor) -> Tensor:
        """The values before the last layer."""
        values: Tensor = self.trunk(inputs)
        return values

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits


# -- garments


class JudgeNetwork(_Classifier):
    """Pictures (n, 1, 32, 32) in [-1, 1] to logits of the ten garments."""

    def __init__(self) -> None:
        trunk = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, WIDTH),
            nn.ReLU(),
        )
        super().__init__(trunk, len(GARMENTS))


@dataclass(frozen=True)
class Verdict:
    """The judge's result for each picture: indices into GARMENTS and TONES, and the features."""

    garments: Tensor
    tones: Tensor
    features: Tensor


class Judge:
    """The network for the garment, and the brightness thresholds between the tones."""

    def __init__(self, network: JudgeNetwork, tone_borders: Tensor) -> None:
        self.network = network.eval().requires_grad_(False)
        self.tone_borders = tone_borders

    @classmethod
    def load(cls, path: Path = JUDGE_PATH) -> Judge:
        """Read the shipped judge, or another file of the same form."""
        with _loading(path):
            tensors = _read(path)
            borders, network = tensors.pop(BORDERS_KEY), JudgeNetwork()
            network.load_state_dict(tensors)
        return cls(network, borders)

    @torch.inference_mode()
    def __call__(self, pictures: Tensor, asked: Tensor | None = None) -> Verdict:
        """Judge pictures (n, 1, 32, 32) in [-1, 1].

        A tone is relative to its garment (a third of all real coats is dark): the garment that was `asked` for, or the
        recognised one by default.
        """
        batches = torch.split(pictures.float().clamp(-1, 1), 500)
        features = torch.cat([self.network.features(batch) for batch in batches])
        garments = self.network.head(features).argmax(1)
        borders = self.tone_borders[garments if asked is None else asked]
        tones = (brightness(pictures.float())[:, None] > borders).sum(1)
        return Verdict(garments, tones, features)


# -- emoji


class EmojiJudgeNetwork(nn.Module):
    """Pictures (n, 3, 64, 64) in [-1, 1] and token ids (n, 24) to unit vectors of the same space."""

    def __init__(self, vocabulary: int, padding: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2, padding=1),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
            nn.Conv2d(64, 128, 4, stride=2, padding=1),
            nn.GroupNorm(8, 128),
            nn.ReLU(),
            nn.Conv2d(128, 128, 4, stride=2, padding=1),
            nn.GroupNorm(8, 128),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.projection = nn.Linear(128 * 4 * 4, WIDTH)
        self.words = nn.EmbeddingBag(vocabulary, WIDTH, mode="mean", padding_idx=padding)
        self.phrase = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.log_scale = nn.Parameter(torch.tensor(3.0))

    def features(self, pictures: Tensor) -> Tensor:
        """The values of a picture before its vector is normalised."""
        values: Tensor = self.projection(self.trunk(pictures))
        return values

    def of_pictures(self, pictures: Tensor) -> Tensor:
        """Unit vectors of pictures."""
        return F.normalize(self.features(pictures), dim=1)

    def of_captions(self, tokens: Tensor) -> Tensor:
        """Unit vectors of tokenized captions; the order of the words does not count."""
        bag = self.words(tokens)
        return F.normalize(bag + self.phrase(bag), dim=1)


class EmojiJudge:
    """A joint embedding of pictures and captions, which ranks captions for a picture."""

    def __init__(self, network: EmojiJudgeNetwork, tokenizer: Any) -> None:
        self.network = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, path: Path = EMOJI_JUDGE_PATH, tokenizer: Path = HERE / "emoji" / "tokenizer") -> EmojiJudge:
        """Read the shipped judge, or another file of the same form."""
        try:
            from transformers import CLIPTokenizer
        except ImportError as error:
            raise missing("the judge of the emoji model", "diffusers") from error
        with _loading(path):
            tensors = _read(path)
            words = CLIPTokenizer.from_pretrained(tokenizer, local_files_only=True)
            network = EmojiJudgeNetwork(len(tensors["words.weight"]), words.pad_token_id)
            network.load_state_dict(tensors)
        return cls(network, words)

    def tokens(self, captions: list[str]) -> Tensor:
        """The token ids of captions."""
        encoded = self.tokenizer(
            captions, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt"
        )
        ids: Tensor = encoded.input_ids
        return ids

    @torch.inference_mode()
    def features(self, pictures: Tensor) -> Tensor:
        """Features for the Frechet distance of pictures (n, 3, 64, 64) in [-1, 1]."""
        return torch.cat([self.network.features(batch) for batch in torch.split(pictures.float().clamp(-1, 1), 250)])

    @torch.inference_mode()
    def ranks(self, pictures: Tensor, asked: list[int], captions: list[str]) -> Tensor:
        """For each picture how many of the captions fit better than the one it was `asked` for; 0 is right."""
        likeness = F.normalize(self.features(pictures), dim=1) @ self.network.of_captions(self.tokens(captions)).T
        of_asked = likeness.gather(1, torch.tensor(asked)[:, None])
        return (likeness > of_asked).sum(1)


# -- sounds


class SoundJudgeNetwork(_Classifier):
    """Log-mels (n, FRAMES, MELS) to the logits of all attributes side by side."""

    def __init__(self) -> None:
        trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (FRAMES // 8) * (MELS // 8), WIDTH),
            nn.ReLU(),
        )
        super().__init__(trunk, sum(HEADS.values()))

    def features(self, inputs: Tensor) -> Tensor:
        return super().features(inputs[:, None])


@dataclass(frozen=True)
class SoundVerdict:
    """The judge's result for each sound: the index of each attribute's value, by HEADS, and the features."""

    found: dict[str, Tensor]
    features: Tensor

    def right(self, asked: Sequence[Sound]) -> dict[str, Tensor]:
        """Whether each attribute is as asked, and "all" of them; the register of a drum is always right."""
        answers = {}
        for name, values in self.found.items():
            pairs = zip((getattr(sound, name) for sound in asked), values.tolist(), strict=True)
            answers[name] = torch.tensor([wanted in (None, value) for wanted, value in pairs])
        return answers | {"all": torch.stack(list(answers.values())).all(0)}


class SoundJudge:
    """Recognises the instrument, the register, the loudness and what is played."""

    def __init__(self, network: SoundJudgeNetwork) -> None:
        self.network = network.eval().requires_grad_(False)

    @classmethod
    def load(cls, path: Path = SOUND_JUDGE_PATH) -> SoundJudge:
        """Read the shipped judge, or another file of the same form."""
        with _loading(path, " of sounds"):
            network = SoundJudgeNetwork()
            network.load_state_dict(_read(path))
        return cls(network)

    @torch.inference_mode()
    def __call__(self, waves: Tensor) -> SoundVerdict:
        """Judge waves (n, SAMPLES) in [-1, 1]."""
        return self.of_spectrograms(torch.cat([log_mel(batch.float()) for batch in torch.split(waves, 200)]))

    @torch.inference_mode()
    def of_spectrograms(self, spectrograms: Tensor) -> SoundVerdict:
        """Judge log-mels (n, FRAMES, MELS), such as those that a vocoder gets."""
        features = torch.cat([self.network.features(batch) for batch in torch.split(spectrograms, 200)])
        logits = self.network.head(features).split(list(HEADS.values()), dim=1)
        return SoundVerdict({name: part.argmax(1) for name, part in zip(HEADS, logits, strict=True)}, features)
