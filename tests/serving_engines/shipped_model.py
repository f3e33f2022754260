"""The shipped flow model in a folder that engines with their own code for Stable Diffusion 3 can serve.

    python -m tests.serving_engines.shipped_model FOLDER

They know a model by the folder's name, expect a third text encoder, pad prompts to 77 tokens and write colour pictures.
The third encoder returns zeros, which is what diffusers uses where there is none; the grey picture becomes three equal
channels.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusion3Pipeline
from transformers import CLIPTextModelWithProjection, T5Config, T5EncoderModel

import thg
from tests.tiny_parts import t5_tokenizer

NAME = "sd3-medium-shipped"
TOKENS = 77


def save(folder: Path) -> Path:
    """Writes the model into a folder within `folder`, and returns it."""
    pipe = thg.shipped_pipeline("flow")
    tokenizer = t5_tokenizer()
    width = pipe.transformer.config.joint_attention_dim
    zeros = T5EncoderModel(
        T5Config(vocab_size=len(tokenizer), d_model=width, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    torch.nn.init.zeros_(zeros.encoder.final_layer_norm.weight)
    for name in ("tokenizer", "tokenizer_2"):
        getattr(pipe, name).model_max_length = TOKENS
    parts = pipe.components | {
        "text_encoder": _longer(pipe.text_encoder),
        "text_encoder_2": _longer(pipe.text_encoder_2),
        "text_encoder_3": zeros,
        "tokenizer_3": tokenizer,
        "vae": _in_colour(pipe.vae),
    }
    StableDiffusion3Pipeline(**parts).save_pretrained(folder / NAME)
    return folder / NAME


def _in_colour(vae: AutoencoderKL) -> AutoencoderKL:
    """With its one output channel three times."""
    colour = AutoencoderKL.from_config({**vae.config, "out_channels": 3}).eval()
    state = vae.state_dict()
    for name in ("decoder.conv_out.weight", "decoder.conv_out.bias"):
        state[name] = state[name].repeat(3, *[1] * (state[name].ndim - 1))
    colour.load_state_dict(state)
    return colour


def _longer(encoder: CLIPTextModelWithProjection) -> CLIPTextModelWithProjection:
    """With positions for all tokens; the new ones are zero."""
    settings = {**encoder.config.to_dict(), "max_position_embeddings": TOKENS, "dtype": "float32"}
    longer = CLIPTextModelWithProjection(type(encoder.config)(**settings)).eval()
    state = {name: value.float() for name, value in encoder.state_dict().items()}
    for name, value in longer.state_dict().items():
        if state[name].shape != value.shape:
            positions = torch.zeros(value.shape)
            positions[: len(state[name])] = state[name]
            state[name] = positions
    longer.load_state_dict(state)
    return longer


if __name__ == "__main__":
    print(save(Path(sys.argv[1])))
