"""Pipelines that make sound."""

from __future__ import annotations

from typing import Any

from diffusers import (
    AudioLDM2Pipeline,
    AudioLDM2UNet2DConditionModel,
    AutoencoderOobleck,
    EDMDPMSolverMultistepScheduler,
    StableAudioDiTModel,
    StableAudioPipeline,
)
from diffusers.pipelines.stable_audio import StableAudioProjectionModel
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    T5Config,
    T5EncoderModel,
)

from tests.pipelines.families.case import WIDTH, Case, Prompts, ddim, lively, masks, pairs, randn

TOKENS = 5
PER_PROMPT = "num_waveforms_per_prompt"


def audioldm2() -> Case:
    """Two kinds of embeddings for two cross-attentions; the pipeline asks its text encoders for their precision."""
    unet = AudioLDM2UNet2DConditionModel(
        block_out_channels=(WIDTH, WIDTH),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=(WIDTH, WIDTH),
        attention_head_dim=2,
        norm_num_groups=4,
    )
    t5 = T5EncoderModel(T5Config(vocab_size=8, d_model=WIDTH, d_kv=4, d_ff=4, num_layers=1, num_heads=1))
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=WIDTH, n_layer=1, n_head=1))
    vocoder = SpeechT5HifiGan(
        SpeechT5HifiGanConfig(
            model_in_dim=32,
            upsample_initial_channel=4,
            upsample_rates=[2],
            upsample_kernel_sizes=[4],
            resblock_kernel_sizes=[3],
            resblock_dilation_sizes=[[1]],
        )
    )
    pipe = AudioLDM2Pipeline(
        unet=lively(unet),
        text_encoder_2=t5,
        language_model=gpt2,
        vocoder=vocoder,
        scheduler=ddim(),
        **dict.fromkeys(("vae", "text_encoder", "projection_model", "tokenizer", "tokenizer_2", "feature_extractor")),
    )

    def inputs(prompts: Prompts) -> dict[str, Any]:
        mask, negative_mask = masks(prompts, TOKENS)
        return {
            **pairs(prompts, TOKENS),
            "generated_prompt_embeds": randn(prompts, TOKENS, WIDTH, salt=3),
            "negative_generated_prompt_embeds": randn(prompts, TOKENS, WIDTH, salt=4),
            "attention_mask": mask,
            "negative_attention_mask": negative_mask,
            "audio_length_in_s": 0.01,
        }

    return Case(pipe, inputs, per_prompt=PER_PROMPT, networks=("unet",))


def stable_audio() -> Case:
    """Without negative prompts: their embeddings are zeros that the pipeline adds."""
    transformer = StableAudioDiTModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        num_key_value_attention_heads=1,
        cross_attention_dim=WIDTH,
        cross_attention_input_dim=WIDTH,
        global_states_input_dim=2 * WIDTH,
        time_proj_dim=8,
    )
    vae = AutoencoderOobleck(
        encoder_hidden_size=4,
        downsampling_ratios=[2],
        channel_multiples=[1],
        decoder_channels=4,
        decoder_input_channels=4,
        sampling_rate=8,
    )
    projection = StableAudioProjectionModel(text_encoder_dim=WIDTH, conditioning_dim=WIDTH, min_value=0, max_value=32)
    scheduler = EDMDPMSolverMultistepScheduler(sigma_min=0.3, sigma_max=50.0, prediction_type="v_prediction")
    pipe = StableAudioPipeline(
        vae=vae,
        text_encoder=None,
        projection_model=lively(projection),
        tokenizer=None,
        transformer=lively(transformer),
        scheduler=scheduler,
    )

    def inputs(prompts: Prompts) -> dict[str, Any]:
        mask, _ = masks(prompts, TOKENS)
        return {"prompt_embeds": randn(prompts, TOKENS, WIDTH, salt=1), "attention_mask": mask}

    return Case(pipe, inputs, per_prompt=PER_PROMPT)


FAMILIES = {"AudioLDM 2": audioldm2, "Stable Audio": stable_audio}
