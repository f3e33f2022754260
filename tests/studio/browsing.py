"""What the tests do with the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
WAIT = 60_000  # milliseconds

SHIFTS = """() => new Promise((resolve) => {
  const shifts = [];
  new PerformanceObserver((list) => {
    for (const { value, hadRecentInput, sources } of list.getEntries()) {
      if (!hadRecentInput) shifts.push([value, ...sources.map(({ node }) => node?.id || node?.className)]);
    }
  }).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => resolve(shifts.filter(([value]) => value > 0.002)), 100);
})"""
"""The layout jumps of a page so far that its reader did not cause."""

PIXELS = """async (image) => {
  await image.decode();
  const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
  canvas.getContext("2d").drawImage(image, 0, 0);
  return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
}"""


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def set_up(page: Any, seed: int, steps: int = 6, prompt: str = "a light bag") -> None:
    """Fills the form, and waits until the strip has followed."""
    page.fill("#prompt", prompt)
    page.fill("#seed", str(seed))
    page.fill("#steps", str(steps))
    expect(page.locator(".mark")).to_have_count(steps)


def finish(page: Any) -> None:
    expect(page.locator("#status")).to_contain_text("done:")


def generate(page: Any) -> None:
    page.click("#generate")
    finish(page)


def choose(page: Any, name: str, value: str) -> None:
    """One of the segments: `kind`, `view`, `batch`, `order`."""
    page.check(f'input[name="{name}"][value="{value}"]')


def number(page: Any, side: str, name: str) -> str:
    return text(page, f'#pane-{side} [data-number="{name}"]')


def text(page: Any, selector: str) -> str:
    return page.locator(selector).inner_text()


def link(page: Any) -> dict[str, str]:
    """What the permalink says."""
    from urllib.parse import parse_qsl

    return dict(parse_qsl(page.evaluate("location.hash").removeprefix("#")))


def downloaded(page: Any, name: str) -> tuple[str, Path]:
    """The file behind a button: its name, and where it was saved."""
    with page.expect_download() as waiting:
        page.click(f'[data-get="{name}"]')
    return waiting.value.suggested_filename, Path(waiting.value.path())
