"""What can be taken away from the page: the picture, the plan, the lines of Python, the link."""

from __future__ import annotations

import json
import runpy

import numpy as np
import pytest
from PIL import Image

import thg
from tests.studio.browsing import choose, downloaded, expect, generate, number, set_up
from tests.studio.conftest import command_model, serve
from thg.studio.engine import Engine

pytestmark = pytest.mark.browser


def read(path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_the_lines_of_python_make_the_picture(opened, tmp_path, monkeypatch):
    page = opened()
    set_up(page, seed=9, prompt='it\'s a "bag" \\ with {braces}')
    page.locator(".mark").nth(3).click()
    expect(page.locator('input[name="kind"][value="custom"]')).to_be_checked()
    generate(page)
    name, picture = downloaded(page, "picture")
    assert name == "thg-9.png"
    name, script = downloaded(page, "script")
    assert name == "reproduce.py"
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    np.testing.assert_array_equal(read(tmp_path / "thg-9.png"), read(picture))


def test_the_picture_says_how_it_was_made(opened):
    page = opened()
    set_up(page, seed=9, prompt="a bag, für alle")
    choose(page, "batch", "4")
    generate(page)
    with page.expect_download() as waiting:
        page.click('[data-get="picture"]')
    with Image.open(waiting.value.path()) as picture:
        how = json.loads(picture.text["thg"])
    assert (how["prompt"], how["steps"], how["nfe"]) == ("a bag, für alle", 6, int(number(page, "thg", "nfe")))
    assert waiting.value.suggested_filename == f"thg-{how['seed']}.png"
    assert how["scheduler"] == "DDIMScheduler"
    assert thg.Plan.from_dict(how["plan"]).nfe == 8


def test_the_plan_is_read_by_thg(opened):
    page = opened()
    set_up(page, seed=9)
    generate(page)
    name, path = downloaded(page, "plan")
    assert name == "plan.json"
    plan = thg.Plan.from_json(path.read_text())
    assert (plan.steps, plan.nfe) == (6, 8)
    assert plan.skips == "network"
    assert 0 < plan.corrector <= 1


def test_four_pictures_are_four_files(opened):
    page = opened()
    set_up(page, seed=20)
    choose(page, "batch", "4")
    generate(page)
    names = []
    page.on("download", lambda download: names.append(download.suggested_filename))
    page.click('[data-get="picture"]')
    expect(page.locator("#pane-thg .badge")).to_have_count(4)
    while len(names) < 4:
        page.wait_for_timeout(20)
    assert names == [f"thg-{seed}.png" for seed in range(20, 24)]


def test_the_link_is_copied(opened):
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    set_up(page, seed=77)
    page.click('[data-get="link"]')
    expect(page.locator("#toast")).to_have_text("The link is on the clipboard.")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert "seed=77" in page.url


def test_a_browser_that_forbids_the_clipboard_is_told_where_the_link_is(opened):
    page = opened()
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new DOMException('not allowed')); }")
    page.click('[data-get="link"]')
    expect(page.locator("#toast")).to_contain_text("address bar")


def test_shipped_model(opened, tmp_path, monkeypatch):
    """The lines of the model that everybody has, as `thg studio` loads it."""
    with serve(Engine(command_model("--device", "cpu"))) as studio:
        page = opened(url=studio.url)
        assert page.input_value("#prompt")
        page.fill("#steps", "4")
        page.fill("#seed", "3")
        expect(page.locator(".mark")).to_have_count(4)
        generate(page)
        _, picture = downloaded(page, "picture")
        _, script = downloaded(page, "script")
        assert len(script.read_text().splitlines()) == 5
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(script))
        np.testing.assert_array_equal(read(tmp_path / "thg-3.png"), read(picture))
        page.close()
