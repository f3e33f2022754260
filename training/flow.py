"""Stage 5: the flow twin, a Stable Diffusion 3 transformer that predicts velocity, with its two text encoders."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from diffusers.models.attention_processor import Attention
from torch import nn
from transformers import CLIPTextModelWithProjection, CLIPTokenizer

from training.conditions import Batches
from training.eps import text_config
from training.loop import parse_options, train
from training.tokenizer import build_tokenizer

TEXT_WIDTHS = (64, 32)
WIDTH = 128
LAYERS = 6
PADDING_COUNTS = (1, 16, 256)
"""Lengths of the zero padding that stands where a T5 encoder's tokens would be; 256 is the pipeline's default."""


class CountedPadding:
    """Joint attention in which the last context token stands for several equal ones.

    Without a T5 encoder, StableDiffusion3Pipeline appends 256 zero tokens. They carry no position, so they stay equal
    to each other in every layer, and one token whose attention weight counts 256-fold gives the same result at a
    quarter of the cost. `log_counts` holds the logarithm of that number for each picture of the batch.
    """

    def __init__(self) -> None:
        self.log_counts = torch.zeros(1)

    def __call__(
        self,
        attn: Attention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = hidden_states.shape[1]

        def joint(own: nn.Linear, added: nn.Linear) -> torch.Tensor:
            both = torch.cat([own(hidden_states), added(encoder_hidden_states)], dim=1)
            return both.unflatten(2, (attn.heads, -1)).transpose(1, 2)

        query, key, value = (
            joint(attn.to_q, attn.add_q_proj),
            joint(attn.to_k, attn.add_k_proj),
            joint(attn.to_v, attn.add_v_proj),
        )
        bias = F.pad(self.log_counts[:, None, None, None], (key.shape[2] - 1, 0))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2).flatten(2)
        context = mixed[:, pixels:]
        return attn.to_out[0](mixed[:, :pixels]), context if attn.context_pre_only else attn.to_add_out(context)


def build_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Straight paths, evenly spaced times: at this picture size no shift towards noise is needed."""
    return FlowMatchEulerDiscreteScheduler(shift=1.0)


def build_model(tokenizer: CLIPTokenizer) -> nn.ModuleDict:
    """The untrained transformer and text encoders."""
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=LAYERS,
        attention_head_dim=32,
        num_attention_heads=WIDTH // 32,
        joint_attention_dim=sum(TEXT_WIDTHS),
        caption_projection_dim=WIDTH,
        pooled_projection_dim=sum(TEXT_WIDTHS),
        pos_embed_max_size=4,
    )
    for block in transformer.transformer_blocks:
        for modulation in (block.norm1, block.norm1_context):
            nn.init.zeros_(modulation.linear.weight)
            nn.init.zeros_(modulation.linear.bias)
    nn.init.zeros_(transformer.norm_out.linear.weight)
    nn.init.zeros_(transformer.norm_out.linear.bias)
    nn.init.zeros_(transformer.proj_out.weight)
    encoders = {
        name: CLIPTextModelWithProjection(text_config(tokenizer, width, layers=2))
        for name, width in zip(("text_encoder", "text_encoder_2"), TEXT_WIDTHS, strict=True)
    }
    return nn.ModuleDict({"transformer": transformer, **encoders})


def encode(model: nn.ModuleDict, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Context (with one padding token) and pooled condition, as the pipeline makes them."""
    outputs = [model[name](tokens, output_hidden_states=True) for name in ("text_encoder", "text_encoder_2")]
    context = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
    return F.pad(context, (0, 0, 0, 1)), torch.cat([output.text_embeds for output in outputs], dim=-1)


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(__doc__, arguments, steps=5100, learning_rate=1e-3)
    tokenizer = build_tokenizer()
    batches = Batches(options.work, tokenizer, shifted=True)
    torch.manual_seed(options.seed)
    model = build_model(tokenizer)
    attention = CountedPadding()
    transformer: Any = model["transformer"]
    transformer.set_attn_processor(attention)
    log_counts = torch.tensor([math.log(count) for count in PADDING_COUNTS])

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        latents, tokens = batches.draw(options.batch, generator)
        attention.log_counts = log_counts[torch.randint(len(log_counts), (options.batch,), generator=generator)]
        sigma = torch.randn(options.batch, generator=generator).sigmoid()
        noise = torch.randn(latents.shape, generator=generator)
        noisy = torch.lerp(latents, noise, sigma[:, None, None, None])
        context, pooled = encode(model, tokens)
        velocity = model["transformer"](
            noisy, encoder_hidden_states=context, pooled_projections=pooled, timestep=1000 * sigma
        ).sample
        return (velocity - (noise - latents)).square().mean()

    train(model, loss_of, options, "flow")


if __name__ == "__main__":
    main()
