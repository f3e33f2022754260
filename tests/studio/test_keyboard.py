"""The page without a mouse: everything is reached, named, and shows where the focus is."""

from __future__ import annotations

import pytest

from tests.studio.browsing import expect, finish, generate, set_up

pytestmark = pytest.mark.browser

NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, a, audio, [role=img], [role=tab]")]
  .filter((element) => element.checkVisibility())
  .filter((element) => !(element.labels?.length || element.ariaLabel || element.textContent.trim() || element.title))
  .map((element) => element.outerHTML)"""


def test_a_whole_comparison(opened):
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Control+a")
    page.keyboard.type("a light bag")
    page.fill("#steps", "6")
    expect(page.locator(".mark")).to_have_count(6)
    page.locator("#prompt").focus()
    page.keyboard.press("Enter")
    finish(page)
    page.locator('input[name="view"][value="side"]').focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#swipe")).to_be_visible()


def test_everything_is_reached_and_shows_its_focus(opened):
    page = opened()
    set_up(page, seed=60)
    generate(page)
    page.click("#more summary")
    reached = {}
    page.locator(".skip").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        name, ring = page.evaluate(
            """() => {
                 const { activeElement: at } = document;
                 const ringed = (part) => part && getComputedStyle(part).outlineStyle === "solid";
                 const ring = [at, at.nextElementSibling].some(ringed);
                 return [at.id || at.name || at.className || at.tagName, ring];
               }"""
        )
        reached[name] = ring
    del reached["BODY"]
    wanted = "prompt generate seed dice batch steps guidance kind negative scheduler width height order corrector live"
    wanted += " budget mark view forget theme tab-compare quiet"
    assert set(wanted.split()) <= set(reached)
    assert [name for name, ring in reached.items() if not ring] == []


def test_tabs_have_the_keys_of_tabs(opened):
    page = opened()
    page.locator("#tab-compare").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-profile").is_visible()
    assert page.locator("#tab-profile").get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    assert page.locator("#panel-compare").is_visible()


def test_every_control_has_a_name(opened):
    page = opened()
    set_up(page, seed=61)
    generate(page)
    page.click("#more summary")
    for view in ("side", "swipe", "difference"):
        page.check(f'input[name="view"][value="{view}"]')
        assert page.evaluate(NAMELESS) == []
    assert page.locator("#pane-thg img").get_attribute("alt") == "thg: a light bag"


def test_motion_can_be_turned_off(opened, studio):
    page = opened(reduced_motion="reduce")
    moving = "document.getAnimations().length"
    set_up(page, seed=62)
    generate(page)
    assert page.evaluate(moving) == 0
