"""The page when things go wrong, and on a small screen; and what people expect of such a page."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from tests.studio.browsing import choose, downloaded, expect, generate, link, number, set_up, text
from tests.studio.conftest import serve
from tests.studio.holding import WatchedEngine, held
from thg.studio.engine import Engine

pytestmark = pytest.mark.browser
LAPTOP = {"width": 1366, "height": 768}


def test_a_server_that_was_away(browser, model):
    """The console hears of refused connections, so this page is not watched for errors."""
    context = browser.new_context(viewport=LAPTOP)
    page = context.new_page()
    engine = WatchedEngine(model)
    with serve(engine) as studio:
        page.goto(f"{studio.url}/#plan=default&nfe=0.65&steps=20")
        page.wait_for_selector("body[data-ready]")
        expect(page.locator("#model.ready")).to_be_visible()
        with held(engine):
            page.click("#generate")
            expect(page.locator("#pane-plain .count")).to_contain_text("step 5 of 20")
            port = int(studio.url.rpartition(":")[2])
    expect(page.locator("#status.bad")).to_have_text("the studio was closed")
    page.fill("#steps", "6")  # asks for a plan, in vain
    expect(page.locator("#plan-error")).to_contain_text("the studio does not answer")
    expect(page.locator("#model.away")).to_be_visible()
    said = page.locator("#model-name").bounding_box()
    assert said["x"] + said["width"] <= page.locator("#theme").bounding_box()["x"]  # nothing of it is covered
    expect(page.locator("#generate")).to_be_disabled()
    with serve(WatchedEngine(model), port=port):
        expect(page.locator("#model.ready")).to_be_visible()
        expect(page.locator("#generate")).to_be_enabled()
        generate(page)
    context.close()


@pytest.mark.parametrize("batch", ["1", "4"])
def test_the_pictures_are_above_the_fold_of_a_laptop(opened, batch, shots):
    page = opened(viewport=LAPTOP)
    set_up(page, seed=7)
    choose(page, "batch", batch)
    generate(page)
    page.screenshot(path=shots / f"laptop-{batch}.png")
    assert "fewer steps" in text(page, ".tagline")
    for side in ("plain", "thg"):
        for name in (".frame", ".numbers"):
            box = page.locator(f"#pane-{side} {name}").bounding_box()
            assert box["y"] + box["height"] <= LAPTOP["height"]
    assert page.locator("#pane-thg .frame").bounding_box()["height"] > 300
    box = page.locator("#remark").bounding_box()
    assert box["y"] + box["height"] <= LAPTOP["height"]


def test_words_for_runs_that_save_nothing_and_for_reused_results(opened):
    page = opened("/#plan=default&error=0.0001&steps=6")
    generate(page)
    expect(page.locator("#status")).to_contain_text("nothing was saved, all 12 evaluations are needed")
    page.locator("#budget").focus()
    page.keyboard.press("Home")
    expect(page.locator("#nfe")).not_to_have_text("12")
    generate(page)
    assert number(page, "plain", "seconds").endswith("earlier")
    assert not number(page, "thg", "seconds").endswith("earlier")
    expect(page.locator("#remark")).to_contain_text("for a target of 10 %")


def test_swipe_cuts_each_picture(opened):
    page = opened()
    set_up(page, seed=7)
    choose(page, "batch", "4")
    generate(page)
    choose(page, "view", "swipe")
    box = page.locator(".swipe-frame").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.625, box["y"] + box["height"] * 0.3, steps=3)
    page.mouse.up()
    cut = float(page.locator(".swipe-frame").evaluate("frame => frame.style.getPropertyValue('--cut')").rstrip("%"))
    assert 23 <= cut <= 27  # a quarter of the second picture
    blades = [page.locator(".blade").nth(i).bounding_box()["x"] - box["x"] for i in range(2)]
    assert blades[0] == pytest.approx(0.125 * box["width"], abs=8)
    assert blades[1] == pytest.approx(0.625 * box["width"], abs=8)


def test_seeds_lightbox_and_both_in_one_file(opened):
    page = opened()
    set_up(page, seed=7)
    choose(page, "batch", "9")
    generate(page)
    assert page.locator("#pane-thg .tile img").count() == 9
    page.locator("#pane-thg .tile img").nth(1).click()
    expect(page.locator("#lightbox")).to_be_visible()
    assert text(page, "#lightbox p").startswith("thg")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#lightbox p")).to_contain_text("Plain CFG")
    page.keyboard.press("Escape")
    expect(page.locator("#lightbox")).to_be_hidden()
    name, path = downloaded(page, "both")
    assert name == "plain-and-thg-7.png"
    with Image.open(path) as sheet:
        assert sheet.size == (512, 44 + 9 * 256)
    choose(page, "batch", "1")
    page.check("#reroll")
    generate(page)
    assert link(page)["seed"] != "7"
    expect(page.locator("#history-hint")).to_be_empty()  # two runs fit


def test_a_sheet_of_steps_and_targets(opened):
    page = opened()
    set_up(page, seed=7, steps=5)
    page.check("#reroll")
    page.check("#live")
    page.click("#xy summary")
    page.fill("#xy-steps", "4 6")
    page.fill("#xy-targets", "10, 0.1")
    with page.expect_download() as waiting:
        page.click("#xy-run")
    with Image.open(waiting.value.path()) as sheet:
        assert sheet.size == (96 + 2 * 256, 44 + 2 * 256)
        corners = [(96 + 256 * x + 8, 44 + 256 * y - 8) for x in (0, 1) for y in (1, 2)]  # of each cell's caption
        assert {sheet.convert("RGB").getpixel(corner) for corner in corners} == {(20, 22, 29)}
    expect(page.locator("#history li")).to_have_count(4)
    expect(page.locator("#steps")).to_have_value("5")
    expect(page.locator("#seed")).to_have_value("7")


DROP = """(text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "old.png", { type: "image/png" }));
  dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def test_a_dropped_picture_brings_its_settings(opened, tmp_path):
    import base64

    page = opened()
    set_up(page, seed=7, prompt="a first prompt")
    generate(page)
    before = page.locator("#pane-thg img").evaluate("image => image.src")
    _, path = downloaded(page, "picture")
    set_up(page, seed=8, steps=10, prompt="another")
    page.evaluate(DROP, base64.b64encode(path.read_bytes()).decode())
    expect(page.locator("#toast")).to_contain_text("settings of that picture")
    assert (page.input_value("#prompt"), page.input_value("#seed"), page.input_value("#steps")) == (
        "a first prompt",
        "7",
        "6",
    )
    generate(page)
    with Image.open(path) as old, Image.open(downloaded(page, "picture")[1]) as new:
        assert list(old.getdata()) == list(new.getdata())
        assert json.loads(old.text["thg"])["plan"] == json.loads(new.text["thg"])["plan"]
    assert before
    empty = io.BytesIO()
    Image.new("RGB", (8, 8)).save(empty, "PNG")
    page.evaluate(DROP, base64.b64encode(empty.getvalue()).decode())
    expect(page.locator("#toast")).to_contain_text("Runs start from this picture now.")  # it has no settings


def test_remaining_time(opened, model):
    class Slow(Engine):
        def _callback(self, after_step):
            import time

            def slowly(step, latents):
                time.sleep(0.4)
                after_step(step, latents)

            return super()._callback(slowly)

    with serve(Slow(model)) as studio:
        page = opened(url=studio.url)
        set_up(page, seed=3, steps=20)
        page.click("#generate")
        expect(page.locator("#pane-plain .count")).to_contain_text("s left")
        page.click("#cancel")
        page.close()
