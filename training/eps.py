"""Stage 4: the Stable Diffusion model, a U-Net that predicts noise, trained together with its text encoder."""

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from training.conditions import Batches
from training.loop import parse_options, train
from training.tokenizer import MAX_LENGTH, build_tokenizer

SNR_CAP = 5.0
"""Min-SNR weighting: steps with less noise than this count less, so that shape and tone are learnt first."""

TEXT_WIDTH = 64


def build_scheduler() -> DDIMScheduler:
    """Stable Diffusion's noise schedule."""
    return DDIMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        steps_offset=1,
        clip_sample=False,
        set_alpha_to_one=False,
    )


def text_config(tokenizer: CLIPTokenizer, width: int, layers: int) -> CLIPTextConfig:
    """A tiny CLIP text encoder for this tokenizer."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 16),
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def build_model(tokenizer: CLIPTokenizer) -> nn.ModuleDict:
    """The untrained U-Net and text encoder."""
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(48, 96),
        layers_per_block=1,
        norm_num_groups=16,
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,
    )
    return nn.ModuleDict({"unet": unet, "text_encoder": CLIPTextModel(text_config(tokenizer, TEXT_WIDTH, layers=2))})


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(__doc__, arguments, steps=2600, learning_rate=6e-4)
    tokenizer = build_tokenizer()
    batches = Batches(options.work, tokenizer, shifted=False)
    torch.manual_seed(options.seed)
    model = build_model(tokenizer)
    kept = build_scheduler().alphas_cumprod
    weights = (SNR_CAP / (kept / (1 - kept))).clamp(max=1.0)

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        latents, tokens = batches.draw(options.batch, generator)
        times = torch.randint(len(kept), (options.batch,), generator=generator)
        noise = torch.randn(latents.shape, generator=generator)
        share = kept[times][:, None, None, None]
        noisy = share.sqrt() * latents + (1 - share).sqrt() * noise
        words = model["text_encoder"](tokens)[0]
        predicted = model["unet"](noisy, times, encoder_hidden_states=words).sample
        return ((predicted - noise).square().mean((1, 2, 3)) * weights[times]).mean()

    train(model, loss_of, options, "eps")


if __name__ == "__main__":
    main()
