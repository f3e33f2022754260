"""Makes docs/studio.png: the studio with the shipped model after one comparison, on the screen of a laptop.

python docs/make_studio.py     # on an idle machine: the picture shows seconds
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

OUT = Path(__file__).with_name("studio.png")


def main() -> None:
    command = [sys.executable, "-m", "thg", "studio", "--device", "cpu", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as studio:
        try:
            assert studio.stdout is not None
            shoot(next(found[0] for line in studio.stdout if (found := re.search(r"http://\S+", line))))
        finally:
            studio.terminate()


def shoot(address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.goto(f"{address}#prompt=panda&seed=7")
        page.wait_for_selector("body[data-ready]")
        page.click("#generate")
        expect(page.locator("#status")).to_contain_text("done:", timeout=60_000)
        page.mouse.move(0, 0)
        page.screenshot(path=OUT)
        browser.close()


if __name__ == "__main__":
    main()
