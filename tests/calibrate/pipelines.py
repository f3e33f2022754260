"""Tiny pipelines with random weights, built by code: what calibration runs on in these tests."""

import string

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

PROMPTS = ["a boot", "a shirt", "a bag", "a coat", "a dress"]


def text_encoder(projected=False):
    """A text encoder with random weights, and a tokenizer that reads letter by letter."""
    letters = [*string.ascii_lowercase, *(letter + "</w>" for letter in string.ascii_lowercase)]
    specials = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate([*letters, *specials])}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=12)
    config = CLIPTextConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=12,
        projection_dim=8,
        bos_token_id=vocabulary[specials[0]],
        eos_token_id=vocabulary[specials[1]],
    )
    model = CLIPTextModelWithProjection(config) if projected else CLIPTextModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval(), tokenizer


def stable_diffusion(scheduler=None, prediction_type="epsilon"):
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    vae = AutoencoderKL(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=4,
        norm_num_groups=2,
    )
    scheduler = scheduler or DDIMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
        prediction_type=prediction_type,
    )
    encoder, tokenizer = text_encoder()
    pipe = StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=encoder,
        tokenizer=tokenizer,
        unet=unet.eval(),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def stable_diffusion_3(scheduler=None):
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        pos_embed_max_size=8,
    )
    with torch.no_grad():  # the output layer starts at zero; a flow of zero would teach nothing
        for parameter in transformer.parameters():
            parameter.normal_(std=0.2)
    vae = AutoencoderKL(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=4,
        norm_num_groups=2,
        shift_factor=0.0,
        scaling_factor=1.0,
    )
    encoder, tokenizer = text_encoder(projected=True)
    other, _ = text_encoder(projected=True)
    pipe = StableDiffusion3Pipeline(
        transformer=transformer.eval(),
        scheduler=scheduler or FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae.eval(),
        text_encoder=encoder,
        tokenizer=tokenizer,
        text_encoder_2=other,
        tokenizer_2=tokenizer,
        text_encoder_3=None,
        tokenizer_3=None,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
