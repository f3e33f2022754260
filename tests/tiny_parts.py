"""The parts of the tiny pipelines in tests: small networks with random weights, and tokenizers that read letters."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTokenizer, SpeechT5HifiGan, SpeechT5HifiGanConfig, T5Tokenizer

WIDTH = 16
WORDS = 24  # tokens in a prompt


def clip_tokenizer() -> CLIPTokenizer:
    """One token for each letter."""
    letters = [chr(code) for code in range(33, 127)]
    tokens = letters + [f"{letter}</w>" for letter in letters] + ["<|startoftext|>", "<|endoftext|>"]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocabulary.write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
        merges.write_text("#version: 0.2\n")
        return CLIPTokenizer(str(vocabulary), str(merges), model_max_length=WORDS)


def t5_tokenizer() -> T5Tokenizer:
    """One token for each letter."""
    letters = ["<pad>", "</s>", "<unk>", "▁", *map(chr, range(33, 127))]
    return T5Tokenizer([(letter, -float(i)) for i, letter in enumerate(letters)], extra_ids=0, model_max_length=32)


def clip_text(tokenizer: CLIPTokenizer, layers: int = 1) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def unet(kind: Any = UNet2DConditionModel, **settings: Any) -> Any:
    usual = {
        "sample_size": 8,
        "block_out_channels": (8, 16),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 2,
    }
    return kind(**{**usual, **settings})


def picture_vae(**channels: int) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        norm_num_groups=4,
        sample_size=32,
        **channels,
    )


def vocoder(channels: int, upsampling: tuple[int, ...]) -> SpeechT5HifiGan:
    """Sound from spectrograms: as many samples for each column as the product of `upsampling`."""
    config = SpeechT5HifiGanConfig(
        model_in_dim=8,
        sampling_rate=16000,
        upsample_initial_channel=channels,
        upsample_rates=list(upsampling),
        upsample_kernel_sizes=[2 * rate for rate in upsampling],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
        normalize_before=False,
    )
    return SpeechT5HifiGan(config)
