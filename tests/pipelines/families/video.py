"""Pipelines that make video."""

from __future__ import annotations

from typing import Any

from diffusers import (
    AnimateDiffPipeline,
    AutoencoderKLHunyuanVideo15,
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    MotionAdapter,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from diffusers.guiders import ClassifierFreeGuidance

from tests.pipelines.families.case import GUIDANCE, WIDTH, Case, Prompts, ddim, lively, masks, pairs, randn, unet

TOKENS = 5
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8}
NOTHING: dict[str, Any] = dict.fromkeys(("vae", "text_encoder", "tokenizer"))
PER_PROMPT = "num_videos_per_prompt"


def animatediff() -> Case:
    """Its prompt embeddings are repeated for each frame."""
    level = {
        "block_out_channels": (WIDTH,),
        "down_block_types": ("CrossAttnDownBlock2D",),
        "up_block_types": ("CrossAttnUpBlock2D",),
    }
    adapter = MotionAdapter(
        block_out_channels=(WIDTH,),
        motion_layers_per_block=1,
        motion_num_attention_heads=2,
        motion_norm_num_groups=4,
        motion_max_seq_length=4,
    )
    pipe = AnimateDiffPipeline(unet=unet(**level), motion_adapter=lively(adapter, seed=1), scheduler=ddim(), **NOTHING)
    return Case(pipe, _clip(num_frames=3, size=64), networks=("unet",))


def cogvideox(layers: int = 1) -> Case:
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=1,
        attention_head_dim=WIDTH,
        in_channels=4,
        out_channels=4,
        time_embed_dim=WIDTH,
        text_embed_dim=WIDTH,
        num_layers=layers,
        sample_width=8,
        sample_height=8,
        sample_frames=5,
        max_text_seq_length=TOKENS,
        use_rotary_positional_embeddings=True,
    )
    pipe = CogVideoXPipeline(transformer=lively(transformer), scheduler=CogVideoXDDIMScheduler(), **NOTHING)
    return Case(pipe, _clip(num_frames=5, size=64), per_prompt=PER_PROMPT)


def ltx() -> Case:
    transformer = LTXVideoTransformer3DModel(
        in_channels=4, out_channels=4, **HEADS, cross_attention_dim=WIDTH, num_layers=1, caption_channels=WIDTH
    )
    pipe = LTXPipeline(transformer=lively(transformer), scheduler=FlowMatchEulerDiscreteScheduler(), **NOTHING)
    clip = _clip(num_frames=9, size=128)

    def inputs(prompts: Prompts) -> dict[str, Any]:
        mask, negative_mask = masks(prompts, TOKENS)
        return {**clip(prompts), "prompt_attention_mask": mask, "negative_prompt_attention_mask": negative_mask}

    return Case(pipe, inputs, per_prompt=PER_PROMPT)


def wan21(layers: int = 1) -> Case:
    """One network for all times."""
    pipe = WanPipeline(transformer=_wan(layers=layers), scheduler=_wan_scheduler(), **NOTHING)
    return Case(pipe, _clip(num_frames=5, size=64), per_prompt=PER_PROMPT)


def wan22() -> Case:
    """Two experts, one for the early times and one for the late ones."""
    pipe = WanPipeline(
        transformer=_wan(), transformer_2=_wan(seed=1), boundary_ratio=0.6, scheduler=_wan_scheduler(), **NOTHING
    )
    networks = ("transformer", "transformer_2")
    return Case(pipe, _clip(num_frames=5, size=64), per_prompt=PER_PROMPT, networks=networks)


def _wan(seed: int = 0, layers: int = 1) -> Any:
    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=WIDTH,
        freq_dim=WIDTH,
        ffn_dim=WIDTH,
        num_layers=layers,
        rope_max_seq_len=16,
    )
    return lively(transformer, seed)


def _wan_scheduler() -> UniPCMultistepScheduler:
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)


def hunyuan_video15() -> Case:
    """Guidance by a guider, which is switched on and off on the pipeline and not in the call."""
    channels = 4
    transformer = HunyuanVideo15Transformer3DModel(
        in_channels=2 * channels + 1,
        out_channels=channels,
        **HEADS,
        num_layers=1,
        num_refiner_layers=1,
        text_embed_dim=WIDTH,
        text_embed_2_dim=WIDTH,
        image_embed_dim=WIDTH,
        rope_axes_dim=(4, 2, 2),
        target_size=16,
        task_type="t2v",
    )
    vae = AutoencoderKLHunyuanVideo15(latent_channels=channels, block_out_channels=(8, 8, 8, 8, 8), layers_per_block=1)
    pipe = HunyuanVideo15Pipeline(
        transformer=lively(transformer),
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        guider=ClassifierFreeGuidance(guidance_scale=GUIDANCE),
        **dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")),
    )
    pipe.vision_num_semantic_tokens = 3
    clip = _clip(num_frames=5, size=64)

    def inputs(prompts: Prompts) -> dict[str, Any]:
        mask, negative_mask = masks(prompts, TOKENS)
        return {
            **clip(prompts),
            "prompt_embeds_mask": mask,
            "negative_prompt_embeds_mask": negative_mask,
            "prompt_embeds_2": randn(prompts, TOKENS, WIDTH, salt=3),
            "negative_prompt_embeds_2": randn(prompts, TOKENS, WIDTH, salt=4),
            "prompt_embeds_mask_2": mask,
            "negative_prompt_embeds_mask_2": negative_mask,
        }

    def switch(on: bool) -> dict[str, Any]:
        pipe.guider.enable() if on else pipe.guider.disable()
        return {}

    return Case(pipe, inputs, switch, per_prompt=PER_PROMPT)


def _clip(num_frames: int, size: int) -> Any:
    def inputs(prompts: Prompts) -> dict[str, Any]:
        return {**pairs(prompts, TOKENS), "num_frames": num_frames, "height": size, "width": size}

    return inputs


FAMILIES = {
    "AnimateDiff": animatediff,
    "CogVideoX": cogvideox,
    "LTX": ltx,
    "Wan 2.1": wan21,
    "Wan 2.2": wan22,
    "HunyuanVideo 1.5": hunyuan_video15,
}
