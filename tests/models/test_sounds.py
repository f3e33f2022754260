"""The shipped sound model and its judge."""

import json
import math

import diffusers
import pytest
import torch

from thg.errors import THGError
from thg.media import snr
from thg.models import shipped_path, shipped_pipeline
from thg.models.sound_judge import SoundJudge
from thg.models.sounds import (
    FRAMES,
    HOP,
    LOG_DEVIATION,
    MELS,
    SAMPLES,
    SAMPLING_RATE,
    all_sounds,
    log_mel,
    mel_filters,
    sound_prompts,
)

PROMPTS = ["a loud low trumpet note", "a fast loud hi-hat pattern", "a soft high flute note"]


def tone(frequency: float, amplitude: float = 0.5) -> torch.Tensor:
    return amplitude * torch.sin(2 * math.pi * frequency * torch.arange(SAMPLES) / SAMPLING_RATE)[None]


@pytest.fixture(scope="module")
def pipe():
    pipe = shipped_pipeline("audio")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def play(pipe, prompts, **call):
    seeds = [torch.Generator().manual_seed(7 + number) for number in range(len(prompts))]
    return pipe(prompts, generator=seeds, output_type="pt", **{"num_inference_steps": 4, **call}).audios


def test_a_tone_is_in_its_band_and_louder_is_a_constant_more():
    spectrogram = log_mel(tone(1000.0))
    assert spectrogram.shape == (1, FRAMES, MELS)
    band = mel_filters()[round(1000.0 / SAMPLING_RATE * 1024)].argmax()
    assert (spectrogram[0].argmax(1) == band).all()
    softer = log_mel(tone(1000.0, 0.05))
    assert torch.allclose((spectrogram - softer)[0, :, band], torch.tensor(math.log(10) / LOG_DEVIATION), atol=1e-3)


def test_every_combination_has_its_prompt():
    prompts = dict(sound_prompts(280))
    assert len(prompts) == 280
    assert set(prompts.values()) == set(all_sounds())


def test_snr_of_a_known_difference():
    assert snr(tone(500.0, 0.25), tone(500.0, 0.5)) == pytest.approx(20 * math.log10(2))
    assert snr(tone(500.0), tone(500.0)) == math.inf
    assert snr(tone(500.0), 0 * tone(500.0)) == -math.inf


def test_the_pipeline_is_the_genuine_class_and_small():
    index = json.loads((shipped_path("audio") / "model_index.json").read_text())
    assert index["_class_name"] == "AudioLDM2Pipeline"
    files = [file for file in shipped_path("audio").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 30e6
    assert {file.suffix for file in files} <= {".json", ".txt", ".safetensors"}


def test_sounds_have_the_length_and_do_not_depend_on_the_batch(pipe):
    assert type(pipe) is diffusers.AudioLDM2Pipeline
    together = play(pipe, [*PROMPTS, "the sound of a slow soft middle clarinet melody"])
    assert together.shape == (4, SAMPLES)
    assert SAMPLES == FRAMES * HOP
    alone = play(pipe, PROMPTS[:1])
    assert torch.allclose(together[:1], alone, atol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=1e-2)


def test_the_judge_hears_what_was_asked_for(pipe):
    asked = [dict(sound_prompts(280))[prompt] for prompt in PROMPTS]
    verdict = SoundJudge.load()(play(pipe, PROMPTS, num_inference_steps=20, guidance_scale=3.5))
    assert verdict.right(asked)["all"].sum() >= 2
    assert verdict.right(asked[1:] + asked[:1])["all"].sum() == 0


def test_the_judge_says_how_good_it_is():
    description = SoundJudge.load().description
    assert set(description) == {"source", "register", "loudness", "kind", "all"}
    assert 0.5 < description["all"] <= 1


def test_a_missing_judge_is_an_error(tmp_path):
    with pytest.raises(THGError, match="cannot load the judge of sounds"):
        SoundJudge.load(tmp_path / "none.safetensors")
