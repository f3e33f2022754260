"""Makes the pictures of the documentation: the example workflows in ComfyUI's own page, after a run.

    COMFYUI=build/comfyui/ComfyUI PYTHONPATH=src build/comfyui/venv/bin/python comfyui/make_pictures.py

after `make test-comfyui`, on an idle machine: the report shows seconds. They show a small shipped model in place of a
checkpoint. Needs chromium.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "tests"))

import browser  # noqa: E402
from http_server import Server  # noqa: E402

PACK = HERE / "tortoise_hare_guidance"
PICTURES = {
    "beside_plain_guidance": HERE.parent / "docs" / "comfyui.png",
    "text_to_image": PACK / "workflow.png",
}
AROUND = 24  # pixels
EDGES = """() => {
    const {scale, offset} = window.app.canvas.ds, box = window.app.canvas.canvas.getBoundingClientRect();
    const at = (place, side) => (place + offset[side]) * scale + [box.left, box.top][side];
    const nodes = window.app.graph._nodes, TITLE = 50;
    return [Math.min(...nodes.map(n => at(n.pos[0], 0))), Math.min(...nodes.map(n => at(n.pos[1] - TITLE, 1))),
            Math.max(...nodes.map(n => at(n.pos[0] + n.size[0], 0))),
            Math.max(...nodes.map(n => at(n.pos[1] + n.size[1], 1)))];
}"""


def main() -> None:
    for name, target in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            server = Server(Path(folder))  # a new one: what is in a server's cache is not reported again
            try:
                with browser.opened(server.url) as page:
                    shoot(server, page, name, target)
            finally:
                server.stop()


def shoot(server: Server, page: Any, name: str, target: Path) -> None:
    page.wait_for_timeout(8_000)  # the dialog for newcomers opens at a moment of its own
    page.keyboard.press("Escape")
    workflow = json.loads((PACK / "example_workflows" / f"{name}.json").read_text(encoding="utf-8"))
    for node in workflow["nodes"]:
        if node["type"] == "CLIPTextEncode":
            node["widgets_values"] = ["a dark ankle boot" if node.get("title") == "Prompt" else ""]
        if node["type"] == "KSampler":
            node["widgets_values"][3] = 5.0  # the guidance scale of the shipped model
    for setting in ("Comfy.Graph.CanvasInfo", "Comfy.Minimap.Visible"):
        page.evaluate("name => window.app.extensionManager.setting.set(name, false)", setting)
    print(browser.run(page, workflow, name))
    while server.get("/queue")["queue_running"]:
        page.wait_for_timeout(1_000)
    page.wait_for_timeout(5_000)  # the pictures are fetched, and the canvas settles
    page.evaluate("() => window.app.extensionManager.command.execute('Comfy.Canvas.FitView')")
    page.mouse.move(900, 730)
    page.wait_for_timeout(8_000)  # until the message on the finished job has gone
    left, top, right, bottom = page.evaluate(EDGES)
    clip = {
        "x": left - AROUND,
        "y": top - AROUND,
        "width": right - left + 2 * AROUND,
        "height": bottom - top + 2 * AROUND,
    }
    picture = Image.open(io.BytesIO(page.screenshot(clip=clip if target.parent == PACK else None)))
    picture.convert("RGB").quantize(128).save(target, optimize=True)


if __name__ == "__main__":
    main()
