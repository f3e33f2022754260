"""The shipped emoji model: its pictures, its names, and what its judge sees."""

import logging

import diffusers
import pytest
import torch

from thg.errors import THGError
from thg.models import SHIPPED, shipped_pipeline
from thg.models.emoji_prompts import EMOJI_PROMPTS, EXAMPLE_EMOJI, emoji_names
from thg.models.judge import EmojiJudge

SHAPES = {"red heart": 0, "blue heart": 2, "red square": 0, "green circle": 1, "orange circle": 0, "blue square": 2}
"""The channel that is brightest in each; the last two are held out."""

CORNERS = slice(0, 6), slice(-6, None)


@pytest.fixture(scope="module")
def pipe():
    pipe = shipped_pipeline("emoji")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe, prompts, **call):
    seeds = [torch.Generator().manual_seed(number) for number in range(len(prompts))]
    call = {"num_inference_steps": 15, "guidance_scale": 5.0, **call}
    return pipe(prompts, generator=seeds, output_type="pt", **call).images.float()


def test_it_loads_without_a_warning():
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("diffusers").addHandler(handler)
    diffusers.logging.set_verbosity_warning()
    try:
        shipped_pipeline("emoji")
        assert diffusers.logging.get_verbosity() == logging.WARNING
    finally:
        logging.getLogger("diffusers").removeHandler(handler)
    assert [record.getMessage() for record in records] == []


def test_pictures_are_in_colour_and_do_not_depend_on_the_batch(pipe):
    assert type(pipe) is diffusers.StableDiffusionPipeline
    together = draw(pipe, ["panda", "a fox", "lemon"], num_inference_steps=3)
    assert together.shape == (3, 3, 64, 64)
    assert torch.allclose(draw(pipe, ["panda"], num_inference_steps=3), together[:1], atol=1e-3)
    assert together.std(1).max() > 0.05  # the channels differ


def test_colours_are_those_of_the_prompt(pipe):
    pictures = draw(pipe, list(SHAPES))
    inside = pictures.min(1, keepdim=True).values < 0.5  # the background is white
    means = (pictures * inside).sum((2, 3)) / inside.sum((2, 3))
    assert means.argmax(1).tolist() == list(SHAPES.values())


def test_the_background_is_white(pipe):
    """Also with strong guidance; spots of a tenth of the range can be seen at once."""
    pictures = torch.cat([draw(pipe, ["panda", "red heart", "lion"], guidance_scale=scale) for scale in (5.0, 7.0)])
    corners = torch.cat([pictures[..., rows, :][..., columns].flatten() for rows in CORNERS for columns in CORNERS])
    assert corners.min() > 0.9
    assert corners.mean() > 0.995


def test_the_judge_recognises_what_was_asked_for(pipe):
    asked, captions = list(EXAMPLE_EMOJI), emoji_names().captions
    pictures, judge = 2 * draw(pipe, asked) - 1, EmojiJudge.load()
    places = [captions.index(prompt) for prompt in asked]
    right = judge.ranks(pictures, places, captions)
    wrong = judge.ranks(pictures, places[1:] + places[:1], captions)
    assert (right < 5).sum() >= 7
    assert (wrong < 5).sum() <= 2


def test_combinations_that_were_held_out_are_drawn(pipe):
    """The judge knows role, gender and skin tone again, where all three were never seen together."""
    asked, captions = [name for name in emoji_names().held_out if "skin tone" in name], emoji_names().captions
    pictures = 2 * draw(pipe, asked) - 1
    ranks = EmojiJudge.load().ranks(pictures, [captions.index(prompt) for prompt in asked], captions)
    assert len(asked) == 13
    assert (ranks == 0).sum() >= 7


def test_names_are_500_and_those_held_out_are_combinations():
    names = emoji_names()
    assert len(names.captions) == len(set(names.captions)) == 500
    assert {"green heart", "woman cook: medium-dark skin tone"} <= set(names.held_out)
    assert set(EMOJI_PROMPTS) | set(EXAMPLE_EMOJI) <= set(names.trained)
    assert not set(names.held_out) & set(names.trained)


@pytest.mark.parametrize(
    ("prompt", "known"),
    [
        ("A happy PANDA!", True),
        ("show me an ox", True),
        ("bunny", True),
        ("a purple one", True),
        ("a cop", True),
        ("a bicycle with the bell", False),
        ("", False),
    ],
)
def test_words_that_it_knows(prompt, known):
    assert SHIPPED["emoji"].knows(prompt) is known


@pytest.mark.parametrize("content", ["", "[]", '{"trained": []}'])
def test_broken_names_are_an_error_of_one_line(tmp_path, content):
    (tmp_path / "names.json").write_text(content)
    with pytest.raises(THGError, match="reinstall thg"):
        emoji_names(tmp_path / "names.json")
