"""ComfyUI's page in a real browser."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium")
PATIENCE = 180_000  # ms
REPORT = "[data-testid=tortoise-hare-report]"
READY = "window.app?.vueAppReady && window.app.graph && window.app.canvas && window.app.api.socket?.readyState === 1"
SET = "async settings => { for (const s of settings) await window.app.extensionManager.setting.set(...s); }"
OVERLAPPING = """() => {
    const TITLE = 30, seen = [...document.querySelectorAll('.lg-node[data-node-id]')];
    const boxes = seen.length ? seen.map(part => part.getBoundingClientRect()) : window.app.graph._nodes.map(
        ({pos, size}) => new DOMRect(pos[0], pos[1] - TITLE, size[0], size[1] + TITLE));
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(
        b => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length;
}"""
INTO_SUBGRAPH = """types => {
    const graph = window.app.graph;
    graph.convertToSubgraph(new Set(graph._nodes.filter(node => types.includes(node.type))));
}"""
OPEN_SUBGRAPH = """() => {
    const outer = window.app.graph._nodes.find(node => node.subgraph);
    window.app.canvas.openSubgraph(outer.subgraph, outer);
}"""
QUIET = [["Comfy.TutorialCompleted", True], ["Comfy.Graph.CanvasInfo", False], ["Comfy.Minimap.Visible", False]]


@contextlib.contextmanager
def opened(url: str, canvas: str = "classic", width: int = 1366, height: int = 768) -> Iterator[Page]:
    """canvas: "classic", or "nodes 2.0", in which nodes are parts of the page."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(PATIENCE)
        page.goto(url, wait_until="domcontentloaded")
        page.wait_for_function(READY)
        page.evaluate(SET, [*QUIET, ["Comfy.VueNodes.Enabled", canvas == "nodes 2.0"]])
        reload(page)
        yield page
        browser.close()


def reload(page: Page) -> None:
    page.reload(wait_until="domcontentloaded")
    page.wait_for_function(READY)


def with_shipped_model(workflow: dict[str, Any]) -> dict[str, Any]:
    """The workflow with a shipped model in place of its checkpoint, and what fits it."""
    for node in workflow["nodes"]:
        if node["type"] == "CheckpointLoaderSimple":
            node.update(type="LoadShippedModel", widgets_values=["emoji"])
            node["inputs"] = [{"name": "name", "type": "COMBO", "link": None, "widget": {"name": "name"}}]
        if node["type"] == "EmptyLatentImage":
            node["widgets_values"] = [64, 64, 1]
        if node["type"] == "CLIPTextEncode":
            node["widgets_values"] = ["panda" if node.get("title") == "Prompt" else ""]
        if node["type"] == "KSampler":
            node["widgets_values"][3] = 5.0  # the guidance scale of the shipped model
    return workflow


def load(page: Page, workflow: dict[str, Any], name: str) -> None:
    page.evaluate("([workflow, name]) => window.app.loadGraphData(workflow, true, true, name)", [workflow, name])
    page.evaluate("() => window.app.extensionManager.command.execute('Comfy.Canvas.FitView')")


def overlapping(page: Page) -> int:
    """The number of pairs of nodes that overlap."""
    count: int = page.evaluate(OVERLAPPING)
    return count


def run(page: Page) -> str:
    """Runs the workflow, and returns the report once the job has ended and its messages have been handled."""
    page.evaluate("() => window.app.queuePrompt(0)")
    page.locator(f"{REPORT} [data-part=headline]").first.wait_for()
    wait_for_job(page)
    return shown(page)


def open_subgraph(page: Page) -> None:
    page.wait_for_function("window.app.graph._nodes.some(node => node.subgraph)")
    page.evaluate(OPEN_SUBGRAPH)


def wait_for_job(page: Page) -> None:
    page.wait_for_function("async () => !(await (await fetch('/queue')).json()).queue_running.length")
    page.wait_for_timeout(2_000)


def shown(page: Page) -> str:
    """The text of the report on its node, as it is seen."""
    report = page.locator(f"{REPORT}:visible")
    report.locator("[data-part=headline]").wait_for()
    return report.inner_text()
