"""Stage 3: the denoiser, a U-Net that predicts v, trained together with its text encoder.

A run goes on from its checkpoint in the work folder; without one it starts from the shipped weights (a new learning
rate schedule, a new optimizer), and with --scratch from nothing.
"""

from dataclasses import dataclass
from typing import get_args

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel, CLIPTokenizer

from training import eps
from training.emoji.autoencoder import CHANNELS, shipped_part
from training.emoji.batches import Batches, emoji_tokenizer
from training.emoji.data import Scope
from training.loop import Options, option_parser, train

SNR_CAP = 5.0
"""Steps with less noise than this count less, so that shape and colour are learnt first."""

TEXT_WIDTH = 192


@dataclass(frozen=True)
class DenoiserOptions(Options):
    """scope: the emoji to train on; scratch: not from the shipped weights; bfloat16: for the network's products."""

    scope: Scope
    scratch: bool
    bfloat16: bool


def build_scheduler() -> DDIMScheduler:
    """Stable Diffusion's noise schedule, for a network that predicts v."""
    return DDIMScheduler.from_config(eps.build_scheduler().config, prediction_type="v_prediction")


def build_model(tokenizer: CLIPTokenizer) -> nn.ModuleDict:
    """The untrained U-Net and text encoder.

    The text enters twice: by attention where the picture is 4x4, and as one vector beside the time (the way of
    DeepFloyd IF), which small networks learn from sooner.
    """
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        down_block_types=("DownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        block_out_channels=(48, 96, 192),
        layers_per_block=1,
        norm_num_groups=16,
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,
        addition_embed_type="text",
        addition_embed_type_num_heads=8,
        resnet_time_scale_shift="scale_shift",
    )
    for name, module in unet.named_modules():
        if name.endswith(("conv2", "proj_out", "conv_out")):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    text = CLIPTextModel(eps.text_config(tokenizer, TEXT_WIDTH, layers=3))
    return nn.ModuleDict({"unet": unet, "text_encoder": text})


def load_shipped(model: nn.ModuleDict) -> None:
    """Fill the model with the shipped weights."""
    unet = UNet2DConditionModel.from_pretrained(shipped_part("unet"), torch_dtype=torch.float32)
    text = CLIPTextModel.from_pretrained(shipped_part("text_encoder"), dtype=torch.float32)
    model["unet"].load_state_dict(unet.state_dict())
    model["text_encoder"].load_state_dict(text.state_dict())


def main(arguments: list[str] | None = None) -> None:
    parser = option_parser(__doc__, steps=3000, learning_rate=8e-4)
    parser.add_argument("--scope", choices=get_args(Scope), default="basic")
    parser.add_argument("--scratch", action="store_true", help="do not begin with the shipped weights")
    parser.add_argument("--bfloat16", action="store_true", help="twice as quick on a CPU that has it (avx512_bf16)")
    parser.set_defaults(batch=32, checkpoint_every=50)
    options = DenoiserOptions(**vars(parser.parse_args(arguments)))
    torch.set_num_threads(options.threads)
    tokenizer = emoji_tokenizer()
    batches = Batches(options.work, options.scope, tokenizer)
    torch.manual_seed(options.seed)
    model = build_model(tokenizer)
    if not options.scratch and not (options.work / "emoji.ckpt.safetensors").exists():
        load_shipped(model)
    kept = build_scheduler().alphas_cumprod
    weights = (SNR_CAP * (1 - kept)).clamp(max=1.0)

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        latents, tokens = batches.draw(options.batch, generator)
        times = torch.randint(len(kept), (2, options.batch), generator=generator).amax(0)  # more often with much noise
        noise = torch.randn(latents.shape, generator=generator)
        signal, noisiness = (part[times][:, None, None, None] for part in (kept.sqrt(), (1 - kept).sqrt()))
        noisy, velocity = signal * latents + noisiness * noise, signal * noise - noisiness * latents
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
            words = model["text_encoder"](tokens)[0]
            predicted = model["unet"](noisy, times, encoder_hidden_states=words).sample
        return ((predicted.float() - velocity).square().mean((1, 2, 3)) * weights[times]).mean()

    train(model, loss_of, options, "emoji")


if __name__ == "__main__":
    main()
