"""Transformers that make pictures."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    DiTPipeline,
    DiTTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    Lumina2Pipeline,
    Lumina2Transformer2DModel,
    PixArtAlphaPipeline,
    PixArtTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
    SD3ControlNetModel,
    SD3MultiControlNetModel,
    SD3Transformer2DModel,
    StableDiffusion3ControlNetPipeline,
    StableDiffusion3Pipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)

from tests.pipelines.families.case import GUIDANCE, WIDTH, Case, Prompts, ddim, dpm, lively, masks, pairs, randn, vae
from tests.pipelines.families.stable_diffusion import CONTROL_SCALES

TOKENS = 5
SMALL = {"height": 64, "width": 64}  # latents of 8 by 8 without a VAE
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8}


def true_cfg_scale(on: bool) -> dict[str, Any]:
    return {"true_cfg_scale": GUIDANCE if on else 1.0}


def sd3() -> Case:
    transformer = SD3Transformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        **HEADS,
        joint_attention_dim=WIDTH,
        caption_projection_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        pos_embed_max_size=8,
    )
    nothing = dict.fromkeys(
        ("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3", "tokenizer_3")
    )
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipe = StableDiffusion3Pipeline(transformer=lively(transformer), scheduler=scheduler, **nothing)

    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {
            **pairs(prompts, TOKENS),
            "pooled_prompt_embeds": randn(prompts, WIDTH, salt=3),
            "negative_pooled_prompt_embeds": randn(prompts, WIDTH, salt=4),
            **SMALL,
        }

    return Case(pipe, inputs)


def sd3_two_controlnets() -> Case:
    case = sd3()
    transformer = case.pipe.transformer
    config = {k: v for k, v in transformer.config.items() if k not in ("_use_default_values", "_class_name")}
    controlnets = [lively(SD3ControlNetModel.from_config({**config, "num_layers": 1}), seed=seed) for seed in (1, 2)]
    parts = {**case.pipe.components, "controlnet": SD3MultiControlNetModel(controlnets), "vae": vae()}
    plain = case.inputs

    def inputs(prompts: Prompts) -> dict[str, Any]:
        pictures = [randn(prompts, 3, 8, 8, salt=salt).sigmoid() for salt in (5, 6)]
        torch.manual_seed(0)  # the pipeline draws its control latents without a generator
        return {
            **plain(prompts),
            "height": 8,
            "width": 8,
            "control_image": pictures,
            "controlnet_conditioning_scale": CONTROL_SCALES,
        }

    return Case(StableDiffusion3ControlNetPipeline(**parts), inputs)


def flux() -> Case:
    """With true CFG: two calls a step."""
    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        **HEADS,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(4, 2, 2),
    )
    nothing = dict.fromkeys(("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    pipe = FluxPipeline(transformer=lively(transformer), scheduler=FlowMatchEulerDiscreteScheduler(), **nothing)

    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {
            **pairs(prompts, TOKENS),
            "pooled_prompt_embeds": randn(prompts, WIDTH, salt=3),
            "negative_pooled_prompt_embeds": randn(prompts, WIDTH, salt=4),
            **SMALL,
        }

    return Case(pipe, inputs, true_cfg_scale)


def qwen_image() -> Case:
    """Its guidance formula keeps the norm of the conditional output."""
    transformer = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=2, **HEADS, joint_attention_dim=WIDTH, axes_dims_rope=(4, 2, 2)
    )
    nothing = dict.fromkeys(("vae", "text_encoder", "tokenizer"))
    pipe = QwenImagePipeline(transformer=lively(transformer), scheduler=FlowMatchEulerDiscreteScheduler(), **nothing)

    def inputs(prompts: Prompts) -> dict[str, Any]:
        mask, negative_mask = masks(prompts, TOKENS)
        return {
            **pairs(prompts, TOKENS),
            "prompt_embeds_mask": mask,
            "negative_prompt_embeds_mask": negative_mask,
            **SMALL,
        }

    return Case(pipe, inputs, true_cfg_scale)


def z_image() -> Case:
    """Lists in place of batches, the conditional branch first."""
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=WIDTH,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=WIDTH,
        axes_dims=[4, 2, 2],
        axes_lens=[64, 32, 32],
    )
    nothing = dict.fromkeys(("vae", "text_encoder", "tokenizer"))
    pipe = ZImagePipeline(transformer=lively(transformer), scheduler=FlowMatchEulerDiscreteScheduler(), **nothing)

    def inputs(prompts: Prompts) -> dict[str, Any]:
        # prompts of different lengths, as only lists can hold them
        return {
            "prompt_embeds": [randn([p], TOKENS + p, WIDTH, salt=1)[0] for p in prompts],
            "negative_prompt_embeds": [randn([p], TOKENS, WIDTH, salt=2)[0] for p in prompts],
            **SMALL,
        }

    def switch(on: bool) -> dict[str, Any]:
        return {"guidance_scale": GUIDANCE if on else 0.0}

    return Case(pipe, inputs, switch)


def lumina2() -> Case:
    transformer = Lumina2Transformer2DModel(
        sample_size=8,
        in_channels=4,
        hidden_size=WIDTH,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=8,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(32, 16, 16),
        cap_feat_dim=WIDTH,
    )
    nothing = dict.fromkeys(("vae", "text_encoder", "tokenizer"))
    pipe = Lumina2Pipeline(transformer=lively(transformer), scheduler=FlowMatchEulerDiscreteScheduler(), **nothing)

    def inputs(prompts: Prompts) -> dict[str, Any]:
        mask, negative_mask = masks(prompts, TOKENS)
        return {
            **pairs(prompts, TOKENS),
            "prompt_attention_mask": mask,
            "negative_prompt_attention_mask": negative_mask,
            **SMALL,
        }

    return Case(pipe, inputs)


def pixart() -> Case:
    """With the learned variance, which is cut off after guidance."""
    transformer = PixArtTransformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        **HEADS,
        cross_attention_dim=WIDTH,
        caption_channels=WIDTH,
        use_additional_conditions=False,
    )
    nothing = dict.fromkeys(("vae", "text_encoder", "tokenizer"))
    pipe = PixArtAlphaPipeline(transformer=lively(transformer), scheduler=dpm(), **nothing)
    return Case(pipe, _with_masks(size=64))


def sana() -> Case:
    transformer = SanaTransformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        **HEADS,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=WIDTH,
        caption_channels=WIDTH,
    )
    nothing = dict.fromkeys(("vae", "text_encoder", "tokenizer"))
    pipe = SanaPipeline(transformer=lively(transformer), scheduler=FlowMatchEulerDiscreteScheduler(), **nothing)
    return Case(pipe, _with_masks(size=256))


def _with_masks(size: int) -> Any:
    def inputs(prompts: Prompts) -> dict[str, Any]:
        mask, negative_mask = masks(prompts, TOKENS)
        return {
            **pairs(prompts, TOKENS),
            "negative_prompt": None,
            "prompt_attention_mask": mask,
            "negative_prompt_attention_mask": negative_mask,
            "height": size,
            "width": size,
            "use_resolution_binning": False,
        }

    return inputs


def dit() -> Case:
    """Classes in place of prompts, the conditional branch first."""
    transformer = DiTTransformer2DModel(sample_size=8, in_channels=4, out_channels=8, num_layers=2, **HEADS)
    pipe = DiTPipeline(transformer=lively(transformer), vae=vae(), scheduler=ddim())
    return Case(pipe, lambda prompts: {"class_labels": list(prompts)}, extra={"output_type": "pt"})


FAMILIES = {
    "SD3": sd3,
    "SD3 with two ControlNets": sd3_two_controlnets,
    "Flux with true CFG": flux,
    "Qwen-Image": qwen_image,
    "Z-Image": z_image,
    "Lumina2": lumina2,
    "PixArt": pixart,
    "Sana": sana,
    "DiT": dit,
}
