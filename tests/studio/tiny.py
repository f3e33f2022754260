"""Pipelines so small that a step takes milliseconds: random weights, real code."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from diffusers import (
    AnimateDiffPipeline,
    AudioLDMPipeline,
    AutoencoderKL,
    DDIMScheduler,
    MotionAdapter,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import (
    ClapTextConfig,
    ClapTextModelWithProjection,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
)

WORDS = 24  # tokens in a prompt


def tiny_stable_diffusion() -> StableDiffusionPipeline:
    torch.manual_seed(0)
    tokenizer = _tokenizer()
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        projection_dim=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=WORDS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=2,
    )
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        norm_num_groups=4,
        sample_size=32,
    )
    pipe = StableDiffusionPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=DDIMScheduler(
            beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, steps_offset=1, clip_sample=False
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _tokenizer() -> CLIPTokenizer:
    """One token for each letter."""
    letters = [chr(code) for code in range(33, 127)]
    tokens = letters + [f"{letter}</w>" for letter in letters] + ["<|startoftext|>", "<|endoftext|>"]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocabulary.write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
        merges.write_text("#version: 0.2\n")
        return CLIPTokenizer(str(vocabulary), str(merges), model_max_length=WORDS)


def tiny_sound() -> AudioLDMPipeline:
    """AudioLDM."""
    torch.manual_seed(0)
    tokenizer = _tokenizer()
    text = ClapTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=WORDS + 2,
        projection_dim=16,
        pad_token_id=1,
    )
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=2,
        cross_attention_dim=(8, 16),
        class_embed_type="simple_projection",
        projection_class_embeddings_input_dim=16,
        class_embeddings_concat=True,
    )
    vae = AutoencoderKL(
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        norm_num_groups=4,
    )
    vocoder = SpeechT5HifiGanConfig(
        model_in_dim=8,
        sampling_rate=16000,
        upsample_initial_channel=16,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
        normalize_before=False,
    )
    speaker = SpeechT5HifiGan(vocoder)
    with torch.no_grad():
        speaker.conv_post.weight.mul_(2000)  # random weights whisper, and 16 bits would hear nothing
    pipe = AudioLDMPipeline(
        vae=vae,
        text_encoder=ClapTextModelWithProjection(text),
        tokenizer=tokenizer,
        unet=unet,
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
