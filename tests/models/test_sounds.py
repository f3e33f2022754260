"""The vocabulary and spectrogram of the sound model, and the judge of sounds."""

import json
import math

import pytest
import torch
from safetensors import safe_open

from thg.errors import THGError
from thg.media import snr
from thg.models.judge import SOUND_JUDGE_PATH, SoundJudge
from thg.models.sounds import (
    FRAMES,
    HOP,
    KINDS,
    LOG_DEVIATION,
    MELS,
    SAMPLES,
    SAMPLING_RATE,
    Sound,
    all_sounds,
    log_mel,
    mel_filters,
    sound_prompts,
)


def tone(frequency: float, amplitude: float = 0.5) -> torch.Tensor:
    return amplitude * torch.sin(2 * math.pi * frequency * torch.arange(SAMPLES) / SAMPLING_RATE)[None]


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


def test_the_file_of_the_judge_says_how_good_it_is():
    with safe_open(SOUND_JUDGE_PATH, framework="pt") as file:
        description = json.loads(file.metadata()["description"])
    assert set(description) == {"source", "register", "loudness", "kind", "all"}
    assert 0.9 < description["all"] <= 1


def test_the_judge_hears_loudness_and_beats():
    judge, hiss = SoundJudge.load(), torch.randn(1, SAMPLES, generator=torch.Generator().manual_seed(0))
    beats = hiss * torch.exp(-(torch.arange(SAMPLES) % (8 * HOP)) / 800.0)
    verdict = judge(torch.cat([0.2 * beats, 0.01 * beats]))
    assert verdict.found["loudness"].tolist() == [1, 0]
    assert verdict.found["kind"].tolist() == [KINDS.index("fast")] * 2
    asked = [Sound(int(verdict.found["source"][row]), None, 1, KINDS.index("fast")) for row in range(2)]
    assert verdict.right(asked)["all"].tolist() == [True, False]  # the second is soft


def test_a_missing_judge_is_an_error(tmp_path):
    with pytest.raises(THGError, match="cannot load the judge of sounds"):
        SoundJudge.load(tmp_path / "none.safetensors")
