"""ImageReward: human preference, predicted by a network (Xu et al., 2023).

The network is BLIP (a vision transformer, and a text encoder that attends to it) with a chain of linear layers on top.
It is built from transformers' BLIP classes and filled from the authors' file `ImageReward.pt`, since their package does
not work with current versions of transformers. All sizes are read off the tensors of the file.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from thg.bench.metrics.base import MeanMetric
from thg.bench.metrics.batch import Batch
from thg.bench.metrics.hub import from_hub, image_processor_class, transformers_class
from thg.bench.metrics.weights import cache_folder, load_into, read_tensors, require_file
from thg.errors import MissingExtraError

FILE_NAME = "ImageReward.pt"
HOW_TO_GET = "Download it to there once: hf download THUDM/ImageReward ImageReward.pt --local-dir FOLDER"
TOKENIZER = "bert-base-uncased"
LONGEST_TEXT = 35
REWARD_MEAN, REWARD_STD = 0.16717362830052426, 1.0333394966054072
"""The authors' normalisation over their test prompts."""
HEAD_WIDTH = 64
"""Features per attention head, in both halves of BLIP."""

VISION_NAMES = (
    ("cls_token", "embeddings.class_embedding"),
    ("pos_embed", "embeddings.position_embedding"),
    ("patch_embed.proj.", "embeddings.patch_embedding."),
    (r"blocks\.(\d+)\.norm", r"encoder.layers.\1.layer_norm"),
    (r"blocks\.(\d+)\.attn\.qkv", r"encoder.layers.\1.self_attn.qkv"),
    (r"blocks\.(\d+)\.attn\.proj", r"encoder.layers.\1.self_attn.projection"),
    (r"blocks\.(\d+)\.mlp", r"encoder.layers.\1.mlp"),
    (r"^norm\.", "post_layernorm."),
)
"""From the names of the authors' vision transformer to those of transformers."""


class ImageReward(MeanMetric):
    """The reward of each picture for its prompt, averaged. Higher is better; preferred pictures are above zero."""

    name = "image_reward"
    direction = "higher"
    needs = frozenset({"prompts"})

    def __init__(self, network: RewardNetwork, processor: Any, tokenizer: Any, device: str = "cpu"):
        super().__init__()
        self._network = network.eval().to(device)
        self._processor, self._tokenizer, self._device = processor, tokenizer, device

    def score(self, batch: Batch) -> torch.Tensor:
        pixels = self._processor(images=batch.pil_pictures(), return_tensors="pt")["pixel_values"]
        text = self._tokenizer(
            list(batch.prompts), padding="max_length", truncation=True, max_length=LONGEST_TEXT, return_tensors="pt"
        )
        rewards: torch.Tensor = self._network(
            pixels.to(self._device), text["input_ids"].to(self._device), text["attention_mask"].to(self._device)
        )
        return rewards


class RewardNetwork(nn.Module):
    """Pixels and tokens to one reward per pair."""

    def __init__(self, vision: nn.Module, text: nn.Module, head: nn.Sequential, side: int):
        super().__init__()
        self.vision, self.text, self.head, self.side = vision, text, head, side

    def forward(self, pixels: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen = self.vision(pixel_values=pixels).last_hidden_state
        read = self.text(input_ids=tokens, attention_mask=mask, encoder_hidden_states=seen, is_decoder=False)
        rewards: torch.Tensor = self.head(read.last_hidden_state[:, 0]).squeeze(1)
        return (rewards - REWARD_MEAN) / REWARD_STD


def load_image_reward(path: Path | None = None, tokenizer: str = TOKENIZER, device: str = "cpu") -> ImageReward:
    """ImageReward from the authors' file (`path`, by default in the cache folder) and BERT's tokenizer."""
    path = require_file(path or cache_folder() / FILE_NAME, "ImageReward", HOW_TO_GET)
    words = from_hub(transformers_class("AutoTokenizer", "ImageReward").from_pretrained, tokenizer, "ImageReward")
    tensors = read_tensors(path)
    try:
        network = build_network(tensors, path)
    except KeyError as error:
        raise MissingExtraError(f"{path} has no tensor {error}: it is not ImageReward's. {HOW_TO_GET}") from error
    side = network.side
    processor = image_processor_class("CLIPImageProcessor", "ImageReward")(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}
    )
    return ImageReward(network, processor, words, device)


def build_network(tensors: dict[str, torch.Tensor], path: Path) -> RewardNetwork:
    """The network whose sizes and weights are those of the authors' tensors."""
    vision = _part(tensors, "blip.visual_encoder.")
    text = {name: value for name, value in _part(tensors, "blip.text_encoder.").items() if "position_ids" not in name}
    head = _part(tensors, "mlp.layers.")
    vision_model = _vision_model(vision)
    network = RewardNetwork(vision_model, _text_model(text), _linear_chain(head), vision_model.config.image_size)
    load_into(network.vision, {_vision_name(name): value for name, value in vision.items()}, path)
    load_into(network.text, text, path)
    return network


def _part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _vision_name(name: str) -> str:
    for pattern, replacement in VISION_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _depth(tensors: dict[str, torch.Tensor], pattern: str) -> int:
    return 1 + max(int(match[1]) for name in tensors if (match := re.match(pattern, name)))


def _vision_model(tensors: dict[str, torch.Tensor]) -> Any:
    width, patch = tensors["cls_token"].shape[-1], tensors["patch_embed.proj.weight"].shape[-1]
    config = transformers_class("BlipVisionConfig", "ImageReward")(
        hidden_size=width,
        intermediate_size=len(tensors["blocks.0.mlp.fc1.bias"]),
        num_hidden_layers=_depth(tensors, r"blocks\.(\d+)\."),
        num_attention_heads=width // HEAD_WIDTH,
        image_size=patch * math.isqrt(tensors["pos_embed"].shape[1] - 1),
        patch_size=patch,
        layer_norm_eps=1e-6,
        hidden_act="gelu",
    )
    return transformers_class("BlipVisionModel", "ImageReward")(config)


def _text_model(tensors: dict[str, torch.Tensor]) -> Any:
    vocabulary, width = tensors["embeddings.word_embeddings.weight"].shape
    config = transformers_class("BlipTextConfig", "ImageReward")(
        vocab_size=vocabulary,
        hidden_size=width,
        encoder_hidden_size=tensors["encoder.layer.0.crossattention.self.key.weight"].shape[1],
        intermediate_size=len(tensors["encoder.layer.0.intermediate.dense.bias"]),
        num_hidden_layers=_depth(tensors, r"encoder\.layer\.(\d+)\."),
        num_attention_heads=width // HEAD_WIDTH,
        max_position_embeddings=len(tensors["embeddings.position_embeddings.weight"]),
        layer_norm_eps=1e-12,
        hidden_act="gelu",
        is_decoder=True,  # this is what gives transformers' BERT its cross attention
        use_cache=False,
        bos_token_id=None,
        sep_token_id=None,
    )
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    return BlipTextModel(config, add_pooling_layer=False)


def _linear_chain(tensors: dict[str, torch.Tensor]) -> nn.Sequential:
    """The head without its dropout; the authors put no activation between the linear layers."""
    numbers = sorted(int(name.split(".")[0]) for name in tensors if name.endswith(".weight"))
    layers = []
    for number in numbers:
        weight, bias = tensors[f"{number}.weight"], tensors[f"{number}.bias"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers.append(layer)
    return nn.Sequential(*layers)
