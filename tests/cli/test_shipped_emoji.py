"""The commands with the emoji model, which they use unless told otherwise."""

import json

import numpy as np
import pytest
from PIL import Image

from thg.cli import compare, main
from thg.media import Output
from thg.plots import pictures as sheet
from thg.sampling import SeededRun


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_generate_draws_in_colour_and_says_what_it_knows(here, capsys):
    assert main(["generate", "panda", "a bicycle", "--steps", "2"]) == 0
    assert "'a bicycle' has no word that this model knows; it draws emoji by their names" in capsys.readouterr().err
    with Image.open("out-0.png") as picture:
        assert (picture.mode, picture.size) == ("RGB", (64, 64))
        how = json.loads(picture.text["thg"])
    assert (how["model"], how["guidance_scale"]) == ("emoji", 5.0)


def test_the_demo_shows_both_differences_beside_the_pictures(here, capsys, monkeypatch):
    monkeypatch.setattr(compare, "DEMO_ROWS", 2)
    assert main(["demo", "--steps", "14"]) == 0
    shown = capsys.readouterr()
    titles = [line[:28].strip() for line in shown.out.splitlines()[:3]]
    counts = [int(line[28:].split()[0]) for line in shown.out.splitlines()[:3]]
    assert titles == ["plain CFG", "thg", f"plain CFG, {counts[2] // 2} steps"]
    assert counts[0] == 28 > counts[2] >= counts[1]
    with Image.open("demo.png") as page:
        assert page.width == 2 * sheet.MARGIN + sheet.LABEL + 5 * (sheet.CELL + sheet.GAP)
        columns = np.asarray(page.convert("RGB"))[sheet.MARGIN + sheet.HEAD :, sheet.MARGIN + sheet.LABEL :]
    width = sheet.CELL + sheet.GAP
    ours, fewer = (255 - columns[:, i * width : i * width + sheet.CELL].mean() for i in (2, 4))
    assert 0 < ours < fewer  # thg is nearer to plain CFG than fewer steps are


def test_seconds_are_of_one_picture_as_evaluations_are():
    two = Output("image", (np.zeros((8, 8, 3)), np.ones((8, 8, 3))))
    plain, ours = SeededRun(two, seconds=3.0, nfe=60, cfg_nfe=60), SeededRun(two, seconds=2.0, nfe=30, cfg_nfe=60)
    assert compare._column("plain CFG", plain, plain).caption == "60 evaluations   1.50 s"
    assert compare._speed(ours, plain) == "thg is 1.50 times as fast, and 2.00 times by its evaluations"


def test_a_difference_is_enlarged_and_none_is_white():
    grey, lighter = Image.new("L", (4, 4), 100), Image.new("L", (4, 4), 103)
    assert sheet.difference_of(grey, grey).getextrema() == ((255, 255),) * 3
    assert sheet.difference_of(lighter, grey).getextrema() == ((225, 225),) * 3
