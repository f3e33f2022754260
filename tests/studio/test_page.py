"""The page in a real browser: what a person does with it, and that nothing leaves this machine.

Screenshots are kept in the folder that THG_STUDIO_SHOTS names, if it names one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import thg
from tests.studio.conftest import Running, serve, until
from tests.studio.wishes import run_wish
from thg.studio.engine import Engine

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT = 60_000  # milliseconds
DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}

SHIFTS = """() => new Promise((resolve) => {
  const shifts = [];
  new PerformanceObserver((list) => {
    for (const { value, hadRecentInput, sources } of list.getEntries()) {
      if (!hadRecentInput) shifts.push([value, ...sources.map(({ node }) => node?.id || node?.className)]);
    }
  }).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => resolve(shifts.filter(([value]) => value > 0.002)), 100);
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api.expect.set_options(timeout=WAIT)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, studio: Running) -> Iterator[Open]:
    """Opens the page in a fresh profile; afterwards the console must be free of errors and all requests our own."""
    contexts, wrong, asked = [], [], []

    def open_page(path: str = "/", url: str = studio.url, viewport: dict[str, int] = DESKTOP, **settings: Any) -> Any:
        context = browser.new_context(viewport=viewport, **settings)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url + path)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
    assert asked
    assert all(address.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:")) for address in asked)


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("THG_STUDIO_SHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def set_up(page: Any, seed: int, steps: int = 6, prompt: str = "a light bag") -> None:
    page.fill("#prompt", prompt)
    page.fill("#seed", str(seed))
    page.fill("#steps", str(steps))
    page.locator(".mark").nth(steps - 1).wait_for()
    sync_api.expect(page.locator(".mark")).to_have_count(steps)


def generate(page: Any) -> None:
    page.click("#generate")
    sync_api.expect(page.locator("#status")).to_contain_text("done:")


def text(page: Any, selector: str) -> str:
    return page.locator(selector).inner_text()


def picture_width(page: Any, side: str) -> int:
    image = page.locator(f"#pane-{side} .tile img")
    sync_api.expect(image).to_be_visible()
    return image.evaluate("image => image.naturalWidth")


def test_type_generate_and_see_both_pictures(opened, shots):
    page = opened(color_scheme="light")
    set_up(page, seed=7)
    generate(page)
    assert picture_width(page, "plain") == picture_width(page, "thg") == 32
    assert text(page, '#pane-plain [data-number="nfe"]') == "12"
    assert text(page, '#pane-thg [data-number="nfe"]') == "8"
    assert text(page, '#pane-thg [data-number="psnr"]').endswith("dB")
    assert float(text(page, '#pane-thg [data-number="seconds"]')) > 0
    assert page.locator("#history li").count() == 1
    page.screenshot(path=shots / "desktop-light.png", full_page=True)
    assert page.evaluate(SHIFTS) == []

    page.check('input[name="view"][value="swipe"]')
    page.locator("#cut").focus()
    page.keyboard.press("Home")
    page.locator("#swipe .over img").wait_for()
    assert page.locator(".swipe-frame").evaluate("frame => frame.style.getPropertyValue('--cut')") == "0%"
    page.screenshot(path=shots / "swipe.png")
    page.check('input[name="view"][value="difference"]')
    sync_api.expect(page.locator("#largest")).to_contain_text("of 255")
    assert page.locator("#difference canvas").evaluate("canvas => canvas.width") == 32


def test_slider_moves_plan_and_numbers(opened):
    page = opened()
    set_up(page, seed=1, steps=20)
    sync_api.expect(page.locator("#nfe")).to_have_text("26")
    page.locator("#budget").focus()
    page.keyboard.press("End")
    sync_api.expect(page.locator("#nfe")).to_have_text("40")
    sync_api.expect(page.locator("#speedup")).to_have_text("1.00×")
    assert page.locator('.mark[aria-pressed="true"]').count() == 20
    page.keyboard.press("Home")
    sync_api.expect(page.locator("#nfe")).to_have_text("21")
    sync_api.expect(page.locator('.mark[aria-pressed="true"]')).to_have_count(1)


def test_marks_are_edited_by_click_drag_and_keyboard(opened):
    page = opened()
    set_up(page, seed=1, steps=10)
    sync_api.expect(page.locator("#nfe")).to_have_text("13")
    mark = page.locator(".mark")
    pressed = [i for i in range(10) if mark.nth(i).get_attribute("aria-pressed") == "true"]
    assert pressed == [0, 3, 6]
    mark.nth(8).click()
    sync_api.expect(page.locator("#nfe")).to_have_text("14")
    sync_api.expect(page.locator('input[name="kind"][value="custom"]')).to_be_checked()
    mark.nth(6).drag_to(mark.nth(5))  # a hare is moved
    sync_api.expect(mark.nth(5)).to_have_attribute("aria-pressed", "true")
    sync_api.expect(mark.nth(6)).to_have_attribute("aria-pressed", "false")
    sync_api.expect(page.locator("#nfe")).to_have_text("14")
    mark.nth(5).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    sync_api.expect(page.locator("#nfe")).to_have_text("15")
    mark.nth(0).click(force=True)  # the first step stays
    sync_api.expect(mark.nth(0)).to_have_attribute("aria-pressed", "true")
    assert "coarse=0.3.5.6.8" in page.url


def test_cancel_in_the_middle(opened, studio):
    page = opened()
    set_up(page, seed=41, steps=150)
    page.click("#generate")
    sync_api.expect(page.locator("#pane-plain .count")).to_contain_text("step")
    page.click("#cancel")
    sync_api.expect(page.locator("#status")).to_have_text("cancelled")
    sync_api.expect(page.locator("#cancel")).to_be_disabled()
    with studio.client() as client:
        until(lambda: client.get("/api/queue").json()["running"] is False)


def test_a_closed_tab_frees_the_worker(opened, studio):
    page = opened()
    set_up(page, seed=42, steps=150)
    page.click("#generate")
    sync_api.expect(page.locator("#pane-plain .count")).to_contain_text("step")
    page.close()
    with studio.client() as client:
        until(lambda: client.get("/api/queue").json()["running"] is False)


def test_permalink_brings_everything_back(opened):
    page = opened()
    set_up(page, seed=123, prompt="dark trousers & more")
    page.locator(".mark").nth(5).click()
    sync_api.expect(page.locator('input[name="kind"][value="custom"]')).to_be_checked()
    generate(page)
    link, nfe = page.url, text(page, '#pane-thg [data-number="nfe"]')
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.url == link
    assert page.input_value("#prompt") == "dark trousers & more"
    assert (page.input_value("#seed"), page.input_value("#steps")) == ("123", "6")
    sync_api.expect(page.locator('input[name="kind"][value="custom"]')).to_be_checked()
    sync_api.expect(page.locator("#nfe")).to_have_text(nfe)
    assert picture_width(page, "thg") == 32  # this browser still has the run
    elsewhere = opened(link.removeprefix(page.evaluate("location.origin")))
    assert elsewhere.input_value("#prompt") == "dark trousers & more"
    sync_api.expect(elsewhere.locator("#nfe")).to_have_text(nfe)


def test_downloads(opened):
    page = opened()
    set_up(page, seed=9)
    generate(page)
    files = {}
    for name in ("picture", "plan", "script"):
        with page.expect_download() as waiting:
            page.click(f'[data-get="{name}"]')
        files[waiting.value.suggested_filename] = Path(waiting.value.path()).read_bytes()
    assert set(files) == {"thg-9.png", "plan.json", "reproduce.py"}
    assert files["thg-9.png"].startswith(b"\x89PNG")
    assert thg.Plan.from_json(files["plan.json"].decode()).nfe == 8
    assert b"thg.enable(pipe, thg.uniform(nfe=0.65))" in files["reproduce.py"]


def test_four_seeds_in_the_dark(opened, shots):
    page = opened(color_scheme="dark")
    set_up(page, seed=50)
    page.check('input[name="batch"][value="4"]')
    generate(page)
    assert page.locator("#pane-thg .tile img").count() == 4
    assert page.locator("#pane-thg .badge").count() == 4
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.screenshot(path=shots / "desktop-dark.png", full_page=True)
    page.click("#theme")
    assert page.locator("html").get_attribute("data-theme") == "light"


def test_phone(opened, shots):
    page = opened(viewport=PHONE, has_touch=True, is_mobile=True)
    set_up(page, seed=7)
    generate(page)
    page.screenshot(path=shots / "phone.png", full_page=True)
    for tab in ("compare", "profile"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_everything_is_reached_by_keyboard(opened):
    page = opened()
    set_up(page, seed=60)
    page.locator("#prompt").focus()
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#status")).to_contain_text("done:")
    reached = set()
    page.locator(".skip").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    for needed in ("prompt", "generate", "seed", "dice", "steps", "guidance", "budget", "mark", "theme", "forget"):
        assert needed in reached
    page.locator("#tab-compare").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-profile").is_visible()


def test_errors_are_readable(browser, studio):
    """A plan that cannot be: the console hears of the refused request, so this page is not watched for errors."""
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(f"{studio.url}/#steps=30&plan=paper&preset=sd15")
    sync_api.expect(page.locator("#plan-error")).to_contain_text("the plan is for 50 steps")
    sync_api.expect(page.locator("#generate")).to_be_disabled()
    page.check('input[name="kind"][value="default"]')
    sync_api.expect(page.locator("#plan-error")).to_be_empty()
    page.check('input[name="kind"][value="paper"]')
    sync_api.expect(page.locator("#nfe")).to_have_text("70")
    assert page.input_value("#steps") == "50"
    context.close()


def test_profile_tab(opened, profiled_model, shots):
    with serve(Engine(profiled_model)) as studio:
        page = opened(url=studio.url)
        page.click("#tab-profile")
        page.locator("#chart-errors path.hare.line").wait_for()
        before = int(text(page, "#profile-nfe"))
        page.locator("#rho").focus()
        page.keyboard.press("End")
        sync_api.expect(page.locator("#rho-value")).to_have_text("10.0")
        sync_api.expect(page.locator("#profile-nfe")).not_to_have_text(str(before))
        assert int(text(page, "#profile-nfe")) < before
        page.keyboard.press("PageDown")
        page.screenshot(path=shots / "profile.png", full_page=True)
        wide = page.locator("#chart-errors svg").get_attribute("viewBox")
        page.set_viewport_size(PHONE)
        sync_api.expect(page.locator("#chart-errors svg")).not_to_have_attribute("viewBox", wide)
        page.screenshot(path=shots / "profile-phone.png", full_page=True)
        rho = text(page, "#rho-value")
        page.click("#use-rho")
        sync_api.expect(page.locator('input[name="kind"][value="profile"]')).to_be_checked()
        assert float(rho) == float(dict(part.split("=") for part in page.url.split("#")[1].split("&"))["rho"])
        page.close()


def test_queue_position_is_shown(opened, studio):
    page = opened()
    set_up(page, seed=70)
    wish = run_wish(steps=150, seed=71)
    with studio.client() as client, client.stream("POST", "/api/runs", json=wish) as running:
        lines = running.iter_lines()
        next(lines)
        page.click("#generate")
        sync_api.expect(page.locator("#status")).to_have_text("1 ahead of you")
    sync_api.expect(page.locator("#status")).to_contain_text("done:")
