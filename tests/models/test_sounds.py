"""The shipped sound model, its judge, and the metrics on both."""

import json
import math

import diffusers
import pytest
import torch

from thg.bench.metrics import Batch, load_metrics
from thg.bench.metrics.batch import MetricError
from thg.bench.metrics.sound_judge import SNR, LogMel, sound_asked
from thg.errors import THGError
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
    sound_prompt,
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


def test_every_combination_has_its_prompt_and_is_read_back():
    prompts = dict(sound_prompts(280))
    assert len(prompts) == 280
    assert set(prompts.values()) == set(all_sounds())
    assert all(sound_asked(sound_prompt(sound)) == sound for sound in all_sounds())
    assert sound_asked("a quick strong bass drum beat") == sound_asked("a fast loud kick drum pattern")


def test_a_prompt_that_leaves_something_out_is_refused():
    with pytest.raises(MetricError, match="write 'a soft low trumpet note'"):
        sound_asked("a low trumpet note")


def test_snr_and_log_mel_of_a_known_difference():
    loud, half = tone(500.0), tone(500.0, 0.25)
    batch = Batch(half, references=loud, sample_rate=SAMPLING_RATE)
    assert float(SNR().score(batch)) == pytest.approx(20 * math.log10(2), abs=1e-3)
    band = log_mel(loud).argmax(2)[0, 5]
    decibels = (log_mel(loud) - log_mel(half))[0, 5, band] * LOG_DEVIATION * 20 / math.log(10)
    assert float(decibels) == pytest.approx(20 * math.log10(2), abs=1e-2)
    assert 0 < float(LogMel().score(batch)) <= 20 * math.log10(2) + 1e-2
    same = Batch(loud, references=loud, sample_rate=SAMPLING_RATE)
    assert (float(SNR().score(same)), float(LogMel().score(same))) == (100.0, 0.0)


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
    sounds = play(pipe, PROMPTS, num_inference_steps=20, guidance_scale=3.5)
    batch = Batch(sounds, tuple(PROMPTS), sample_rate=SAMPLING_RATE)
    (accuracy,) = load_metrics(["sound_accuracy"]).metrics
    right = torch.cat(accuracy.measure(batch))
    mixed = Batch(sounds.roll(1, 0), tuple(PROMPTS), sample_rate=SAMPLING_RATE)
    assert right.sum() >= 2
    assert torch.cat(accuracy.measure(mixed)).sum() == 0


def test_the_judge_says_how_good_it_is():
    description = SoundJudge.load().description
    assert set(description) == {"source", "register", "loudness", "kind", "all"}
    assert 0.5 < description["all"] <= 1


def test_a_missing_judge_is_an_error(tmp_path):
    with pytest.raises(THGError, match="cannot load the judge of sounds"):
        SoundJudge.load(tmp_path / "none.safetensors")
