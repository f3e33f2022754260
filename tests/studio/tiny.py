"""Pipelines so small that a step takes milliseconds: random weights, real code."""

from __future__ import annotations

import torch
from diffusers import AnimateDiffPipeline, AudioLDMPipeline, DDIMScheduler, MotionAdapter, StableDiffusionPipeline
from transformers import ClapTextConfig, ClapTextModelWithProjection, CLIPTextModel

from tests.tiny_parts import WIDTH, WORDS, clip_text, clip_tokenizer, picture_vae, unet, vocoder


def tiny_stable_diffusion() -> StableDiffusionPipeline:
    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    pipe = StableDiffusionPipeline(
        vae=picture_vae(),
        text_encoder=CLIPTextModel(clip_text(tokenizer)),
        tokenizer=tokenizer,
        unet=unet(),
        scheduler=DDIMScheduler(
            beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, steps_offset=1, clip_sample=False
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tiny_sound() -> AudioLDMPipeline:
    """AudioLDM."""
    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    text = ClapTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=WORDS + 2,
        projection_dim=WIDTH,
        pad_token_id=1,
    )
    network = unet(
        sample_size=16,
        cross_attention_dim=(8, 16),
        class_embed_type="simple_projection",
        projection_class_embeddings_input_dim=WIDTH,
        class_embeddings_concat=True,
    )
    speaker = vocoder(channels=16, upsampling=(2, 2))
    with torch.no_grad():
        speaker.conv_post.weight.mul_(2000)  # the output of random weights would be silence in 16 bits
    pipe = AudioLDMPipeline(
        vae=picture_vae(in_channels=1, out_channels=1),
        text_encoder=ClapTextModelWithProjection(text),
        tokenizer=tokenizer,
        unet=network,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        vocoder=speaker,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tiny_animation() -> AnimateDiffPipeline:
    """AnimateDiff around the tiny Stable Diffusion."""
    still = tiny_stable_diffusion()
    adapter = MotionAdapter(
        block_out_channels=(8, 16),
        motion_layers_per_block=1,
        motion_num_attention_heads=2,
        motion_norm_num_groups=4,
        motion_max_seq_length=16,
    )
    parts = {name: getattr(still, name) for name in ("vae", "text_encoder", "tokenizer", "unet", "scheduler")}
    pipe = AnimateDiffPipeline(**parts, motion_adapter=adapter)
    pipe.set_progress_bar_config(disable=True)
    return pipe
