"""Pipelines as the hub has them, so small that a run takes seconds: complete, with random weights, saved to disk."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AudioLDM2Pipeline,
    AudioLDM2ProjectionModel,
    AudioLDM2UNet2DConditionModel,
    AutoencoderKLWan,
    DDIMScheduler,
    EulerDiscreteScheduler,
    StableDiffusion3Pipeline,
    StableDiffusionXLPipeline,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import (
    ClapAudioConfig,
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

import thg
from tests.tiny_parts import WIDTH, clip_text, clip_tokenizer, picture_vae, t5_tokenizer, unet, vocoder


def save_sdxl(folder: Path) -> Path:
    """Stable Diffusion XL, with its files named as the hub names those of half precision."""
    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    text = clip_text(tokenizer, layers=2)
    network = unet(
        cross_attention_dim=2 * WIDTH,
        addition_embed_type="text_time",
        addition_time_embed_dim=2,
        projection_class_embeddings_input_dim=6 * 2 + WIDTH,
    )
    pipe = StableDiffusionXLPipeline(
        vae=picture_vae(),
        text_encoder=CLIPTextModel(text),
        text_encoder_2=CLIPTextModelWithProjection(text),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=network,
        scheduler=EulerDiscreteScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012),
        add_watermarker=False,
    )
    pipe.save_pretrained(folder, variant="fp16")
    return folder


def save_sd3(folder: Path) -> Path:
    """Stable Diffusion 3: the shipped flow model with a third text encoder, as the hub's have it."""
    parts = thg.shipped_pipeline("flow").components
    width = parts["transformer"].config.joint_attention_dim
    tokenizer = t5_tokenizer()
    text = T5Config(vocab_size=len(tokenizer), d_model=width, d_kv=4, d_ff=WIDTH, num_layers=1, num_heads=2)
    parts |= {"text_encoder_3": T5EncoderModel(text), "tokenizer_3": tokenizer}
    StableDiffusion3Pipeline(**parts).save_pretrained(folder)
    return folder


def save_wan(folder: Path) -> Path:
    """Wan 2.1."""
    torch.manual_seed(0)
    tokenizer = t5_tokenizer()
    text = UMT5Config(vocab_size=len(tokenizer), d_model=WIDTH, d_kv=4, d_ff=WIDTH, num_layers=1, num_heads=2)
    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=WIDTH,
        freq_dim=WIDTH,
        ffn_dim=WIDTH,
        num_layers=1,
        rope_max_seq_len=32,
    )
    vae = AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    WanPipeline(tokenizer, UMT5EncoderModel(text), vae, scheduler, transformer).save_pretrained(folder)
    return folder


def save_audioldm2(folder: Path) -> Path:
    """AudioLDM 2: two text encoders, and a language model that continues what they say."""
    torch.manual_seed(0)
    tokenizer = t5_tokenizer()
    t5 = T5Config(vocab_size=len(tokenizer), d_model=WIDTH, d_kv=4, d_ff=WIDTH, num_layers=1, num_heads=2)
    network = unet(AudioLDM2UNet2DConditionModel, sample_size=16, cross_attention_dim=(WIDTH, WIDTH))
    pipe = AudioLDM2Pipeline(
        vae=picture_vae(in_channels=1, out_channels=1),
        text_encoder=ClapModel(clap_config(len(tokenizer))),
        text_encoder_2=T5EncoderModel(t5),
        projection_model=AudioLDM2ProjectionModel(WIDTH, WIDTH, WIDTH),
        language_model=GPT2LMHeadModel(
            GPT2Config(vocab_size=8, n_positions=128, n_embd=WIDTH, n_layer=1, n_head=2, max_new_tokens=4)
        ),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        feature_extractor=ClapFeatureExtractor(),
        unet=network,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        vocoder=vocoder(channels=8, upsampling=(10, 16)),
    )
    pipe.save_pretrained(folder)
    return folder


def clap_config(vocabulary: int) -> ClapConfig:
    text = ClapTextConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        projection_dim=WIDTH,
    )
    audio = ClapAudioConfig(
        spec_size=64,
        window_size=4,
        num_mel_bins=64,
        depths=[1, 1],
        num_attention_heads=[1, 1],
        hidden_size=192,
        num_hidden_layers=1,
        patch_embeds_hidden_size=96,
        projection_dim=WIDTH,
    )
    return ClapConfig(text_config=text.to_dict(), audio_config=audio.to_dict(), projection_dim=WIDTH)
