"""A tiny Qwen-Image with random weights: the model of vLLM-Omni that runs step by step and with sequence parallelism.

python -m tests.serving_engines.tiny_qwen FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

WIDTH, HEADS, HEAD_WIDTH, CHANNELS = 32, 2, 16, 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def save(folder: Path) -> Path:
    """Writes the model into a folder within `folder`, and returns it."""
    torch.manual_seed(0)
    tokenizer = _tokenizer()
    text = {"vocab_size": len(tokenizer), "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1}
    text |= {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "max_position_embeddings": 2048}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}}
    vision = {"depth": 1, "hidden_size": WIDTH, "num_heads": HEADS, "intermediate_size": WIDTH}
    encoder = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config=text, vision_config={**vision, "out_hidden_size": WIDTH})
    )
    transformer = QwenImageTransformer2DModel(
        in_channels=4 * CHANNELS,
        out_channels=CHANNELS,
        num_layers=2,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_WIDTH,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(4, 6, 6),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=CHANNELS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
    )
    pipe = QwenImagePipeline(
        transformer=transformer,
        text_encoder=encoder,
        vae=vae,
        tokenizer=tokenizer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    pipe.save_pretrained(folder / "tiny-qwen-image")
    return folder / "tiny-qwen-image"


def _tokenizer() -> Qwen2Tokenizer:
    """One token for each letter."""
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]  # the last two are space and line break
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    return Qwen2Tokenizer(vocabulary, [], additional_special_tokens=SPECIAL[1:])


if __name__ == "__main__":
    print(save(Path(sys.argv[1])))
