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
SCALE = 8
EDGES = """() => {
    const {scale, offset} = window.app.canvas.ds, box = window.app.canvas.canvas.getBoundingClientRect();
    const at = (place, side) => (place + offset[side]) * scale + [box.left, box.top][side];
    const nodes = window.app.graph._nodes, TITLE = 50;
    return [Math.min(...nodes.map(n => at(n.pos[0], 0))), Math.min(...nodes.map(n => at(n.pos[1] - TITLE, 1))),
            Math.max(...nodes.map(n => at(n.pos[0] + n.size[0], 0))),
            Math.max(...nodes.map(n => at(n.pos[1] + n.size[1], 1)))];
}"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            for name, target in PICTURES.items():
                with browser.opened(server.url) as page:
                    shoot(page, name, target)
        finally:
            server.stop()


def shoot(page: Any, name: str, target: Path) -> None:
    page.wait_for_timeout(8_000)  # the dialog for newcomers opens at a moment of its own
    page.keyboard.press("Escape")
    workflow = json.loads((PACK / "example_workflows" / f"{name}.json").read_text(encoding="utf-8"))
    for node in workflow["nodes"]:
        if node["type"] == "CLIPTextEncode":
            node["widgets_values"] = ["a dark ankle boot" if node.get("title") == "Prompt" else ""]
        if node["type"] == "KSampler":
            node["widgets_values"][3] = 5.0  # the guidance scale of the shipped model
    for node in [node for node in workflow["nodes"] if node["type"] == "VAEDecode"]:
        enlarge(workflow, node)
    print(browser.run(page, workflow))
    page.wait_for_timeout(5_000)  # the pictures are fetched, and the canvas settles
    page.evaluate("() => window.app.extensionManager.command.execute('Comfy.Canvas.FitView')")
    page.add_style_tag(content=".minimap-main-container, [data-testid=minimap-container] { display: none !important }")
    page.mouse.move(900, 950)
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


def enlarge(workflow: dict[str, Any], decode: dict[str, Any]) -> None:
    """Puts a node that scales the small pictures between this one and the next."""
    out = decode["outputs"][0]["links"]
    link = next(link for link in workflow["links"] if link[0] == out[0])
    number, added = (1 + workflow[key] for key in ("last_node_id", "last_link_id"))
    workflow.update(last_node_id=number, last_link_id=added)
    place = [decode["pos"][0] + 100, decode["pos"][1] + decode["size"][1] + 40]
    scale = {"id": number, "type": "ImageScaleBy", "pos": place, "size": [200, 80], "flags": {"collapsed": True}}
    scale |= {"order": 0, "mode": 0, "properties": {}, "widgets_values": ["nearest-exact", SCALE]}
    scale["inputs"] = [{"name": "image", "type": "IMAGE", "link": added}]
    scale["outputs"] = [{"name": "IMAGE", "type": "IMAGE", "links": [link[0]]}]
    workflow["nodes"].append(scale)
    workflow["links"].append([added, decode["id"], 0, number, 0, "IMAGE"])
    decode["outputs"][0]["links"] = [added]
    link[1], link[2] = number, 0


if __name__ == "__main__":
    main()
