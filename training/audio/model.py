"""The pipeline: AudioLDM 2 with all its parts, tiny."""

import torch
from diffusers import AudioLDM2Pipeline, AutoencoderKL, DDIMScheduler
from diffusers.pipelines.audioldm2 import AudioLDM2ProjectionModel, AudioLDM2UNet2DConditionModel
from torch import nn
from transformers import (
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaTokenizer,
    SpeechT5HifiGan,
    T5Config,
    T5EncoderModel,
)

from thg.models.sounds import FRAMES, HOP, SAMPLES, SAMPLING_RATE
from training.audio.tokenizers import MAX_LENGTH, roberta_tokenizer, t5_tokenizer

WIDTH = 64
"""Of all text networks."""
GENERATED = 4
"""Hidden states that GPT-2 makes for the U-Net."""
SCALE_FACTOR = 8
"""Of the autoencoder."""


def build_scheduler() -> DDIMScheduler:
    """AudioLDM 2's noise schedule."""
    return DDIMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.0015,
        beta_end=0.0195,
        steps_offset=1,
        clip_sample=False,
        set_alpha_to_one=False,
    )


def build_unet(latent_channels: int) -> AudioLDM2UNet2DConditionModel:
    """Each attention layer looks at the sound, at GPT-2's states and at T5's, as in AudioLDM 2."""
    return AudioLDM2UNet2DConditionModel(
        sample_size=FRAMES // SCALE_FACTOR,
        in_channels=latent_channels,
        out_channels=latent_channels,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(64, 96),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=((None, WIDTH, WIDTH),) * 2,
        attention_head_dim=4,
    )


def build_clap(tokenizer: RobertaTokenizer) -> ClapModel:
    """The text tower is trained with the denoiser; the pipeline needs the audio tower only to rank sounds."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_LENGTH + 2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "projection_dim": WIDTH,
    }
    audio = {
        "spec_size": 64,
        "num_mel_bins": 16,
        "window_size": 4,
        "patch_size": 4,
        "patch_stride": [4, 4],
        "hidden_size": 16,
        "patch_embeds_hidden_size": 8,
        "depths": [1, 1],
        "num_hidden_layers": 2,
        "num_attention_heads": [2, 2],
        "num_classes": 3,
        "enable_fusion": False,
        "projection_dim": WIDTH,
    }
    return ClapModel(ClapConfig(text_config=text, audio_config=audio, projection_dim=WIDTH))


def build_language_model() -> GPT2LMHeadModel:
    """Its position table is zero and stays so: the length of a batch's longest caption then changes nothing."""
    config = GPT2Config(
        vocab_size=8,
        n_positions=64,
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        max_new_tokens=GENERATED,
    )
    network = GPT2LMHeadModel(config)
    nn.init.zeros_(network.transformer.wpe.weight)
    return network


def build_pipeline(autoencoder: AutoencoderKL, vocoder: SpeechT5HifiGan) -> AudioLDM2Pipeline:
    """The pipeline with these two and otherwise untrained parts."""
    roberta, t5 = roberta_tokenizer(), t5_tokenizer()
    t5_config = T5Config(
        vocab_size=len(t5), d_model=WIDTH, d_kv=16, d_ff=2 * WIDTH, num_layers=2, num_heads=4, dropout_rate=0.0
    )
    extractor = ClapFeatureExtractor(
        feature_size=16,
        sampling_rate=SAMPLING_RATE,
        hop_length=HOP,
        max_length_s=SAMPLES / SAMPLING_RATE,
        fft_window_size=1024,
        frequency_min=50,
        frequency_max=SAMPLING_RATE // 2,
        truncation="rand_trunc",
        padding="repeatpad",
    )
    return AudioLDM2Pipeline(
        vae=autoencoder,
        text_encoder=build_clap(roberta),
        text_encoder_2=T5EncoderModel(t5_config),
        projection_model=AudioLDM2ProjectionModel(WIDTH, WIDTH, WIDTH),
        language_model=build_language_model(),
        tokenizer=roberta,
        tokenizer_2=t5,
        feature_extractor=extractor,
        unet=build_unet(autoencoder.config.latent_channels),
        scheduler=build_scheduler(),
        vocoder=vocoder,
    )


def denoiser(pipe: AudioLDM2Pipeline) -> nn.ModuleDict:
    """The parts that are trained together: those that a prompt goes through, and the U-Net."""
    clap, gpt2 = pipe.text_encoder, pipe.language_model.transformer
    return nn.ModuleDict(
        {
            "clap_text": clap.text_model,
            "clap_projection": clap.text_projection,
            "t5": pipe.text_encoder_2,
            "projection": pipe.projection_model,
            "gpt2_layers": gpt2.h,
            "gpt2_norm": gpt2.ln_f,
            "unet": pipe.unet,
        }
    )


def encode(pipe: AudioLDM2Pipeline, captions: list[str]) -> dict[str, torch.Tensor]:
    """What the U-Net is told about captions, by the pipeline's own code."""
    words, mask, generated = pipe.encode_prompt(captions, torch.device("cpu"), 1, False)
    return {
        "encoder_hidden_states": generated,
        "encoder_hidden_states_1": words,
        "encoder_attention_mask_1": mask,
    }
