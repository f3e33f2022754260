"""The judge: how well it knows real pictures, how it measures tone, and the distance in its features."""

import pytest
import torch

from tests.models.conftest import needs_dataset
from thg.errors import THGError
from thg.models.garments import GARMENTS, SYNONYMS, TONE_WORDS, TONES, benchmark_prompts, brightness, prompt_for
from thg.models.judge import Judge
from training.data import DEBIAN_FOLDER, load_split


@needs_dataset
def test_judge_recognises_real_test_pictures():
    pictures, labels = load_split(DEBIAN_FOLDER, "t10k", 2000)
    assert (Judge.load()(pictures).garments == labels).float().mean() >= 0.91


@needs_dataset
def test_tones_split_real_pictures_in_thirds():
    pictures, labels = load_split(DEBIAN_FOLDER, "t10k", 2000)
    shares = Judge.load()(pictures, labels).tones.bincount(minlength=3) / 2000
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), rtol=0, atol=0.05)


def test_brightness_leaves_the_background_out():
    pictures = torch.full((2, 1, 32, 32), -1.0)
    pictures[0, 0, :3] = 0.0
    assert brightness(pictures).tolist() == [0.5, 0.0]


def test_brighter_is_lighter():
    judge = Judge.load()
    greys = torch.linspace(-0.7, 1.0, 8)[:, None, None, None].expand(8, 1, 32, 32)
    tones = judge(greys, torch.full((8,), GARMENTS.index("coat"))).tones.tolist()
    assert tones == sorted(tones)
    assert {tones[0], tones[-1]} == {0, 2}


def test_missing_judge_is_an_error_of_one_line(tmp_path):
    with pytest.raises(THGError, match="cannot load the judge") as caught:
        Judge.load(tmp_path / "judge.safetensors")
    assert "\n" not in str(caught.value)


def test_benchmark_prompts_are_even():
    asked = list(benchmark_prompts(6))
    assert len(asked) == 60
    assert asked[0] == ("a dark t-shirt", 0, 0)
    for label in range(10):
        assert [tone for _, garment, tone in asked if garment == label] == [0, 1, 2, 0, 1, 2]


def test_plain_prompts():
    assert prompt_for("ankle boot") == "an ankle boot"
    assert prompt_for("ankle boot", "dark") == "a dark ankle boot"
    assert prompt_for("trousers", "light") == "light trousers"


def test_no_word_means_two_things():
    names = [name for names in SYNONYMS.values() for name in names]
    words = [word for words in TONE_WORDS.values() for word in words]
    assert len({*names, *words}) == len(names) + len(words)
    assert tuple(SYNONYMS) == GARMENTS
    assert tuple(TONE_WORDS) == TONES
