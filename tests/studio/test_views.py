"""How results look: swipe, difference, four seeds, sound, frames; on a phone, light and dark, without jumps."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.studio.browsing import DESKTOP, PHONE, PIXELS, SHIFTS, choose, expect, finish, generate, set_up, text
from tests.studio.conftest import serve
from tests.studio.holding import held
from tests.studio.tiny import tiny_animation, tiny_sound
from thg.models import ShippedModel
from thg.studio.engine import Engine
from thg.studio.model import Model

pytestmark = pytest.mark.browser


def pixels(page, selector: str) -> np.ndarray:
    return np.array(page.locator(selector).evaluate(PIXELS), dtype=int).reshape(-1, 4)[:, :3]


@pytest.fixture(scope="module")
def page_with_result(browser, studio):
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(studio.url)
    page.wait_for_selector("body[data-ready]")
    set_up(page, seed=7)
    generate(page)
    yield page
    context.close()


def test_views_are_equally_tall_on_a_desktop(page_with_result):
    heights = []
    for view in ("side", "swipe", "difference"):
        choose(page_with_result, "view", view)
        heights.append(page_with_result.locator("#stage").bounding_box()["height"])
    assert max(heights) - min(heights) <= 4


def test_swipe(page_with_result, shots):
    page = page_with_result
    choose(page, "view", "swipe")
    frame = page.locator(".swipe-frame")
    assert not page.locator("#panes").is_visible()
    np.testing.assert_array_equal(pixels(page, "#swipe .under img"), pixels(page, "#pane-plain img"))
    np.testing.assert_array_equal(pixels(page, "#swipe .over img"), pixels(page, "#pane-thg img"))
    box = frame.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    cut = float(frame.evaluate("frame => frame.style.getPropertyValue('--cut')").rstrip("%"))
    assert 20 <= cut <= 30
    blade = page.locator(".blade").bounding_box()
    assert blade["x"] - box["x"] == pytest.approx(box["width"] * cut / 100, abs=2)
    page.screenshot(path=shots / "swipe.png", full_page=True)
    page.keyboard.press("Home")
    assert frame.evaluate("frame => frame.style.getPropertyValue('--cut')") == "0%"


def test_difference_map(page_with_result, shots):
    page = page_with_result
    choose(page, "view", "side")
    apart = np.abs(pixels(page, "#pane-plain img") - pixels(page, "#pane-thg img")).max(1)
    choose(page, "view", "difference")
    expect(page.locator("#largest")).to_have_text(f"The largest difference is {apart.max()} of 255 grey levels.")
    drawn = page.locator("#difference canvas").evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    red = np.array(drawn).reshape(-1, 4)[:, 0]
    assert (red[apart == 0] == 0).all()
    assert (red[apart > 0] > 0).all()
    page.screenshot(path=shots / "difference.png", full_page=True)
    page.locator("#gain").focus()
    page.keyboard.press("End")
    expect(page.locator("#gain-value")).to_have_text("128×")


def test_four_seeds_in_the_dark(opened, shots):
    page = opened(color_scheme="dark")
    set_up(page, seed=50)
    choose(page, "batch", "4")
    generate(page)
    tiles = page.locator("#pane-thg .tile")
    assert tiles.locator("img").count() == tiles.locator(".badge").count() == 4
    boxes = [tiles.nth(i).bounding_box() for i in range(4)]
    assert len({round(box["x"]) for box in boxes}) == len({round(box["y"]) for box in boxes}) == 2
    assert len({page.locator("#pane-thg img").nth(i).evaluate(PIXELS).__repr__() for i in range(4)}) == 4
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.screenshot(path=shots / "desktop-dark.png", full_page=True)
    for view, selector in (("swipe", "#swipe .over img"), ("difference", "#difference canvas")):
        choose(page, "view", view)
        expect(page.locator(selector)).to_have_count(4)


def test_light_and_dark_are_remembered(opened):
    page = opened(color_scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.click("#theme")
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert page.evaluate(ground) != dark
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "light"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(opened, theme):
    """WCAG AA: 4.5 to 1 for the small text, in both appearances."""
    page = opened(color_scheme=theme)
    colours = page.evaluate(
        """() => Object.fromEntries(["ink", "ink-2", "card", "ground", "tortoise", "hare", "accent-ink"].map((name) =>
             [name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()]))"""
    )

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(colours[one]), luminance(colours[other])))
        return (high + 0.05) / (low + 0.05)

    for pair in (("ink", "card"), ("ink-2", "card"), ("ink-2", "ground"), ("hare", "card"), ("accent-ink", "tortoise")):
        assert contrast(*pair) >= 4.5, pair


@pytest.mark.parametrize(
    ("name", "viewport", "seed"), [("desktop", DESKTOP, 31), ("phone", PHONE, 32)], ids=["desktop", "phone"]
)
def test_nothing_jumps(opened, studio, shots, name, viewport, seed):
    page = opened(color_scheme="light", viewport=viewport)
    set_up(page, seed=seed, steps=12)
    with held(studio.engine, after=16):  # in the middle of thg's side
        page.click("#generate")
        expect(page.locator("#pane-thg .count")).to_have_text(re.compile(r"step \d+ of 12"))
        page.screenshot(path=shots / f"{name}-running.png", full_page=True)
    finish(page)
    page.screenshot(path=shots / f"{name}.png", full_page=True)
    assert page.evaluate(SHIFTS) == []


RIGHT_OF_TEXT = """(element) => {
  const range = new Range();
  range.selectNodeContents(element);
  return range.getBoundingClientRect().right;
}"""


def test_phone(opened, shots):
    page = opened(viewport=PHONE, has_touch=True, is_mobile=True)
    expect(page.locator(".tagline")).to_be_in_viewport()
    expect(page.locator(".model.ready .dot")).to_be_in_viewport()
    page.locator("#more summary").tap()
    set_up(page, seed=7)
    page.locator("#generate").tap()
    finish(page)
    for pane in ("plain", "thg"):
        box = page.locator(f"#pane-{pane}").bounding_box()
        for number in page.locator(f"#pane-{pane} dd").all():
            assert number.evaluate(RIGHT_OF_TEXT) <= box["x"] + box["width"]
    for view in ("side", "swipe", "difference"):
        choose(page, "view", view)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for box in (button.bounding_box() for button in page.locator("button:visible:not(.mark)").all()):
        assert box["height"] >= 28, box  # large enough for a finger
    page.locator("#tab-profile").tap()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def small_studio(pipe):
    return serve(Engine(Model(pipe, "tiny", ("pipe = None",), shipped=ShippedModel(steps=4))))


def test_sound_is_played(opened, shots):
    with small_studio(tiny_sound()) as studio:
        page = opened(url=studio.url)
        set_up(page, seed=1, steps=3)
        generate(page)
        players = page.locator("audio")
        expect(players).to_have_count(2)
        assert players.nth(1).evaluate(
            """async (sound) => {
                 sound.muted = true;
                 await sound.play();
                 await new Promise((resolve) => { sound.onended = resolve; });
                 return sound.duration > 0 && sound.currentTime > 0;
               }"""
        )
        spectrogram = page.locator("#pane-thg .tile img")
        assert spectrogram.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") > 100
        box, player = spectrogram.bounding_box(), players.nth(1).bounding_box()
        assert box["y"] + box["height"] <= player["y"]  # nothing of it is covered
        assert text(page, '[data-get="picture"]') == "Sound"
        assert page.locator('input[name="view"][value="swipe"]').is_disabled()
        page.screenshot(path=shots / "sound.png", full_page=True)
        page.close()


def test_frames_are_played(opened, shots):
    with small_studio(tiny_animation()) as studio:
        page = opened(url=studio.url)
        set_up(page, seed=1, steps=3)
        page.click("#more summary")
        page.fill("#width", "32")
        page.fill("#height", "32")
        generate(page)
        player = page.locator("#pane-thg .player")
        slider = player.locator("input")
        first = pixels(page, "#pane-thg img")
        slider.focus()
        page.keyboard.press("End")
        assert slider.input_value() == "15"
        assert (pixels(page, "#pane-thg img") != first).any()
        player.get_by_role("button", name="Play").click()
        expect(slider).not_to_have_value("15")
        player.get_by_role("button", name="Pause").click()
        still = slider.input_value()
        page.wait_for_timeout(300)  # longer than a frame lasts
        assert slider.input_value() == still
        assert text(page, '[data-get="picture"]') == "Frames"
        page.screenshot(path=shots / "frames.png", full_page=True)
        page.close()
