"""Makes the pictures of the documentation and of the examples: ComfyUI's own page after a run, on both canvases.

    build/comfyui/venv/bin/python comfyui/make_pictures.py

after `python comfyui/install.py build/comfyui`, on an idle machine: the report shows seconds. They show a small shipped
model in place of a checkpoint. Needs chromium.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).absolute().parent
sys.path.insert(0, str(HERE / "tests"))
os.environ.update(  # of the server
    COMFYUI=str(HERE.parent / "build/comfyui/ComfyUI"), PYTHONPATH=str(HERE.parent / "src"), HF_HUB_OFFLINE="1"
)

import browser  # noqa: E402
from http_server import EXAMPLES, Server  # noqa: E402

DOCS, PACK = HERE.parent / "docs", HERE / "tortoise_hare_guidance"
CANVASES = {"classic": "pinned", "nodes 2.0": "newer"}  # and the version of the page
SIZES = ((1366, 768), (2560, 1440))
AROUND = 24  # pixels
THUMBNAIL = (640, 360)
LOADED = """() => window.app.graph._nodes.filter(node => ['SaveImage', 'PreviewImage'].includes(node.type)).every(
    node => node.imgs?.length || document.querySelector(`.lg-node[data-node-id="${node.id}"] img`)?.naturalWidth)"""
EDGES = """() => {
    const {scale, offset} = window.app.canvas.ds, box = window.app.canvas.canvas.getBoundingClientRect();
    const at = (place, side) => (place + offset[side]) * scale + [box.left, box.top][side];
    const nodes = window.app.graph._nodes, TITLE = 50;
    return [Math.min(...nodes.map(n => at(n.pos[0], 0))), Math.min(...nodes.map(n => at(n.pos[1] - TITLE, 1))),
            Math.max(...nodes.map(n => at(n.pos[0] + n.size[0], 0))),
            Math.max(...nodes.map(n => at(n.pos[1] + n.size[1], 1)))];
}"""


def main() -> None:
    for canvas, version in CANVASES.items():
        with tempfile.TemporaryDirectory() as folder:
            server = Server(Path(folder), version)
            try:
                with browser.opened(server.url, canvas) as page:
                    shoot(server, page, canvas)
            finally:
                server.stop()


def shoot(server: Server, page: Any, canvas: str) -> None:
    for name in EXAMPLES:
        browser.load(page, browser.with_shipped_model(server.example(name)), name)
        print(browser.run(page))
        page.wait_for_function(LOADED)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(2_000)  # until the canvas has that size
            page.evaluate("() => window.app.extensionManager.command.execute('Comfy.Canvas.FitView')")
            page.wait_for_timeout(8_000)  # until the message on the finished job has gone
            if name == EXAMPLES[1]:
                save(page, DOCS / f"comfyui-{canvas.replace(' ', '-')}-{width}.png")
            if canvas == "classic" and width == SIZES[0][0]:
                picture = save(page, PACK / "workflow.png" if name == EXAMPLES[0] else None, nodes_only=True)
                thumbnail = picture.copy()
                thumbnail.thumbnail(THUMBNAIL)
                thumbnail.save(PACK / "example_workflows" / f"{name}.jpg", quality=85)


def save(page: Any, target: Path | None, nodes_only: bool = False) -> Image.Image:
    clip = None
    if nodes_only:
        left, top, right, bottom = page.evaluate(EDGES)
        size = {"width": right - left + 2 * AROUND, "height": bottom - top + 2 * AROUND}
        clip = {"x": left - AROUND, "y": top - AROUND, **size}
    picture = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    if target is not None:
        picture.quantize(256).save(target, optimize=True)
    return picture


if __name__ == "__main__":
    main()
