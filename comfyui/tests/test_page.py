"""ComfyUI's page in a real browser: the example opens from the templates, and Run shows the report."""

import contextlib
import json

import pytest

playwright = pytest.importorskip("playwright.sync_api")
browser = pytest.importorskip("browser")
LOOK, LOOKS = 2_000, 60  # ms
OPENED = "window.app.graph._nodes.some(node => node.type == 'TortoiseHareGuidance')"


@pytest.fixture(scope="module")
def page(server):
    if browser.CHROMIUM is None:
        pytest.skip("there is no chromium")
    with browser.opened(server.url) as page:
        yield page


def open_example(page):
    """From the templates browser, which opens for a new user by itself, sooner or later, over everything else.

    So each look tries the last step first: the example, the pack in the browser's list, the button that opens it.
    """
    example, pack = (page.get_by_text(text).first for text in ("text_to_image", "tortoise_hare_guidance"))
    button = page.get_by_role("button", name="Templates").first
    for _ in range(LOOKS):
        for part in (example, pack, button):
            if part.is_visible():
                with contextlib.suppress(playwright.TimeoutError):
                    part.click(timeout=LOOK)
                break
        with contextlib.suppress(playwright.TimeoutError):
            page.wait_for_function(OPENED, timeout=LOOK)
            return
    raise AssertionError(f"the example does not open\n{page.locator('body').inner_text()}")


def test_the_example_opens_and_runs(page):
    open_example(page)
    workflow = json.loads(page.evaluate("() => JSON.stringify(window.app.graph.serialize())"))
    assert "●" in browser.run(page, workflow, "text_to_image")
