"""The shipped models in ComfyUI: the noise-predicting one in its own UNet, the flow in its own MMDiT, and the emoji
model, which has layers that ComfyUI's UNet has not, as the network of diffusers. And a small FLUX with random weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import comfy.latent_formats
import comfy.model_base
import comfy.model_patcher
import comfy.ops
import comfy.supported_models
import comfy.supported_models_base
import comfy.utils
import torch
from comfy.ldm.flux.model import FluxParams
from comfy.ldm.modules.diffusionmodules import mmdit

import thg
from thg.models import SHIPPED

CPU = torch.device("cpu")
UNET = {
    "image_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 48,
    "channel_mult": [1, 2],
    "num_res_blocks": [1, 1],
    "transformer_depth": [1, 1],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [1, 1, 1, 1],
    "use_spatial_transformer": True,
    "num_heads": 4,
    "num_head_channels": -1,
    "context_dim": 64,
    "adm_in_channels": None,
    "legacy": False,
    "dtype": torch.float32,
}
MMDIT = {
    "input_size": None,
    "in_channels": 4,
    "patch_size": 2,
    "depth": 2,
    "num_blocks": 6,
    "adm_in_channels": 96,
    "num_patches": 16,
    "pos_embed_max_size": 4,
    "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": 96, "out_features": 128}},
    "dtype": torch.float32,
}
FLUX = {
    "image_model": "flux",
    "in_channels": 16,
    "out_channels": 16,
    "vec_in_dim": 32,
    "context_in_dim": 32,
    "hidden_size": 64,
    "mlp_ratio": 4.0,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 2,
    "axes_dim": [8, 12, 12],
    "theta": 10_000,
    "patch_size": 2,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
    "dtype": torch.float32,
}
HEADS = 4  # ComfyUI's MMDiT takes 64 channels a head for granted


class Operations(comfy.ops.disable_weight_init):
    """ComfyUI's layers, with 16 groups in each GroupNorm."""

    class GroupNorm(comfy.ops.disable_weight_init.GroupNorm):
        def __init__(self, num_groups: int, num_channels: int, **kwargs: Any) -> None:
            super().__init__(16, num_channels, **kwargs)


class EpsConfig(comfy.supported_models_base.BASE):
    unet_extra_config = {}  # noqa: RUF012
    latent_format = comfy.latent_formats.LatentFormat
    custom_operations = Operations


class FlowConfig(comfy.supported_models.SD3):
    unet_config = {}  # noqa: RUF012
    sampling_settings = {"shift": 1.0}  # noqa: RUF012
    latent_format = comfy.latent_formats.LatentFormat
    custom_operations = comfy.ops.disable_weight_init


if "txt_ids_dims" not in FluxParams.__annotations__:  # ComfyUI 0.3.64
    del FLUX["txt_ids_dims"]


class FluxConfig(comfy.supported_models.Flux):
    custom_operations = comfy.ops.disable_weight_init


class EmojiLatents(comfy.latent_formats.LatentFormat):
    latent_channels = 8
    spacial_downscale_ratio = 4


class EmojiConfig(comfy.supported_models_base.BASE):
    unet_extra_config = {"disable_unet_model_creation": True}  # noqa: RUF012
    latent_format = EmojiLatents

    def model_type(self, state_dict: dict[str, Any], prefix: str = "") -> comfy.model_base.ModelType:
        return comfy.model_base.ModelType.V_PREDICTION

    def inpaint_model(self) -> bool:
        return False


class OfDiffusers(torch.nn.Module):
    """A network of diffusers, called as ComfyUI calls its own."""

    dtype = torch.float32

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.unet(x, time, encoder_hidden_states=context).sample


def patcher(name: str, pipe: Any) -> comfy.model_patcher.ModelPatcher:
    """ComfyUI's handle on a shipped model."""
    model = _model(name, pipe)
    return comfy.model_patcher.ModelPatcher(model, CPU, CPU)


def _model(name: str, pipe: Any) -> comfy.model_base.BaseModel:
    if name == "emoji":
        model = EmojiConfig({}).get_model({}, device=CPU)
        model.diffusion_model = OfDiffusers(pipe.unet)
        return model
    config, network = (EpsConfig(UNET), pipe.unet) if name == "eps" else (FlowConfig(MMDIT), pipe.transformer)
    model = config.get_model({}, device=CPU)
    own = model.diffusion_model
    names = comfy.utils.unet_to_diffusers(UNET) if name == "eps" else _mmdit_names()
    own.load_state_dict(_renamed(network.state_dict(), names, own.state_dict()))
    for part in own.modules():
        if isinstance(part, mmdit.SelfAttention):
            part.num_heads, part.head_dim = HEADS, own.hidden_size // HEADS
    return model


def _mmdit_names() -> dict[str, Any]:
    """ComfyUI's own table, which takes the last block to be the one of number depth - 1."""
    names = dict(comfy.utils.mmdit_to_diffusers(MMDIT))
    for end in ("weight", "bias"):
        inner, last = (f"joint_blocks.{i}.context_block.adaLN_modulation.1.{end}" for i in (1, 5))
        names[f"transformer_blocks.1.norm1_context.linear.{end}"] = inner
        names[f"transformer_blocks.5.norm1_context.linear.{end}"] = (last, None, comfy.utils.swap_scale_shift)
    return names


def _renamed(theirs: dict[str, Any], names: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Weights under ComfyUI's names; a name may stand for a part of a larger matrix, or for swapped halves."""
    ours = {name: torch.full_like(value, torch.nan) for name, value in ours.items()}
    for name, value in theirs.items():
        target = names[name]
        target, part, change = (target, None, None) if isinstance(target, str) else (*target, None)[:3]
        whole = ours[target] if part is None else ours[target].narrow(*part)
        whole.copy_(change(value) if change else value)
    assert not any(value.isnan().any() for value in ours.values())
    return ours


@dataclass
class Shipped:
    """A shipped model with its prompts and pictures."""

    name: str
    pipe: Any
    model: comfy.model_patcher.ModelPatcher

    @classmethod
    def load(cls, name: str) -> Shipped:
        pipe = thg.shipped_pipeline(name)
        return cls(name, pipe, patcher(name, pipe))

    @torch.no_grad()
    def encode(self, prompt: str) -> list[Any]:
        """A prompt as ComfyUI's conditioning."""
        if self.name != "flow":
            embeds, _ = self.pipe.encode_prompt(prompt, CPU, 1, False)
            return [[embeds, {}]]
        call = SHIPPED["flow"].call
        embeds, _, pooled, _ = self.pipe.encode_prompt(
            prompt, prompt, prompt, do_classifier_free_guidance=False, **call
        )
        return [[embeds, {"pooled_output": pooled}]]

    def empty(self, batch: int = 1) -> dict[str, torch.Tensor]:
        """Latents to start from."""
        network = self.pipe.transformer if self.name == "flow" else self.pipe.unet
        size = network.config.sample_size
        return {"samples": torch.zeros(batch, network.config.in_channels, size, size)}

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Pictures in [0, 1] of shape (n, 1, 32, 32), of emoji (n, 3, 64, 64)."""
        vae = self.pipe.vae
        shift = vae.config.shift_factor or 0.0
        return (vae.decode(latents / vae.config.scaling_factor + shift).sample / 2 + 0.5).clamp(0, 1)


class Flux:
    """ComfyUI's FLUX, small and with random weights: distilled guidance, cfg 1. Its latents are its pictures."""

    name = "flux"

    def __init__(self) -> None:
        torch.manual_seed(0)
        model = FluxConfig(FLUX).get_model({}, device=CPU)
        for name, weight in model.diffusion_model.named_parameters():
            if "norm" in name:
                weight.data.fill_(1.0)
            else:
                weight.data.normal_(std=0.5 / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.1)
        self.model = comfy.model_patcher.ModelPatcher(model, CPU, CPU)

    def encode(self, prompt: str) -> list[Any]:
        random = torch.Generator().manual_seed(len(prompt))
        pooled = {"pooled_output": torch.randn(1, 32, generator=random), "guidance": 3.5}
        return [[torch.randn(1, 6, 32, generator=random), pooled]]

    def empty(self, batch: int = 1) -> dict[str, torch.Tensor]:
        return {"samples": torch.zeros(batch, 16, 8, 8)}

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return latents
