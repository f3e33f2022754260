"""The shipped sound model, as its judge hears it."""

import diffusers
import pytest
import torch

from thg.models import shipped_pipeline
from thg.models.judge import SoundJudge
from thg.models.sounds import FRAMES, HOP, SAMPLES, sound_prompts

PROMPTS = ["a loud low trumpet note", "a fast loud hi-hat pattern", "a soft high flute note"]


@pytest.fixture(scope="module")
def pipe():
    pipe = shipped_pipeline("audio")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def play(pipe, prompts, **call):
    seeds = [torch.Generator().manual_seed(7 + number) for number in range(len(prompts))]
    return pipe(prompts, generator=seeds, output_type="pt", **{"num_inference_steps": 4, **call}).audios


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
