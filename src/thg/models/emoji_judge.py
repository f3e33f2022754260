"""The judge of the emoji model: a joint embedding of pictures and captions, trained on real pictures only.

It ranks captions for a picture, which measures how well a generated picture shows its prompt, and gives features for
the Frechet distance. It is independent of the model that it judges; only the tokenizer is the same.
"""

from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from thg.distribution import missing
from thg.errors import THGError

EMOJI_JUDGE_PATH: Final = Path(__file__).parent / "emoji_judge.safetensors"
EMOJI_REFERENCE_PATH: Final = Path(__file__).parent / "emoji_reference.safetensors"
"""The mean (mu) and covariance (sigma) of the features of the real pictures, for the Frechet distance."""
TOKENIZER_PATH: Final = Path(__file__).parent / "emoji" / "tokenizer"

WIDTH: Final = 128
MAX_TOKENS: Final = 24


class EmojiJudgeNetwork(nn.Module):
    """Pictures (n, 3, 64, 64) in [-1, 1] and token ids (n, 24) to unit vectors of the same space."""

    def __init__(self, vocabulary: int, padding: int):
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

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """The values of a picture before its vector is normalised."""
        values: torch.Tensor = self.projection(self.trunk(pictures))
        return values

    def of_pictures(self, pictures: torch.Tensor) -> torch.Tensor:
        """Unit vectors of pictures."""
        return F.normalize(self.features(pictures), dim=1)

    def of_captions(self, tokens: torch.Tensor) -> torch.Tensor:
        """Unit vectors of tokenized captions; the order of the words does not count."""
        bag = self.words(tokens)
        return F.normalize(bag + self.phrase(bag), dim=1)


class EmojiJudge:
    """The trained network with its tokenizer."""

    def __init__(self, network: EmojiJudgeNetwork, tokenizer: Any):
        self.network = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, path: Path = EMOJI_JUDGE_PATH, tokenizer: Path = TOKENIZER_PATH) -> "EmojiJudge":
        """Read the shipped judge, or another file of the same form."""
        try:
            from transformers import CLIPTokenizer
        except ImportError as error:
            raise missing("the judge of the emoji model", "diffusers") from error
        try:
            tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
            words = CLIPTokenizer.from_pretrained(tokenizer, local_files_only=True)
            network = EmojiJudgeNetwork(len(tensors["words.weight"]), words.pad_token_id)
            network.load_state_dict(tensors)
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise THGError(f"cannot load the judge from {path}: {error}; reinstall thg") from error
        return cls(network, words)

    def tokens(self, captions: list[str]) -> torch.Tensor:
        """The token ids of captions."""
        encoded = self.tokenizer(
            captions, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt"
        )
        ids: torch.Tensor = encoded.input_ids
        return ids

    @torch.inference_mode()
    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """Features for the Frechet distance of pictures (n, 3, 64, 64) in [-1, 1]."""
        return torch.cat([self.network.features(batch) for batch in torch.split(pictures.float().clamp(-1, 1), 250)])

    @torch.inference_mode()
    def ranks(self, pictures: torch.Tensor, asked: list[int], captions: list[str]) -> torch.Tensor:
        """For each picture how many of the captions fit better than the one it was `asked` for; 0 is right."""
        likeness = F.normalize(self.features(pictures), dim=1) @ self.network.of_captions(self.tokens(captions)).T
        own = likeness.gather(1, torch.tensor(asked)[:, None])
        return (likeness > own).sum(1)
