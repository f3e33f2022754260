"""ComfyUI's server as a process of its own, and its HTTP interface."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NEWER_PAGE = Path(os.environ["COMFYUI"]).absolute().parent / "page" / "comfyui_frontend_package" / "static"
PATIENCE = 300  # seconds; a start takes about 15, on a busy machine more


EXAMPLES = ("Faster text to image - Tortoise and Hare cfg speed", "Faster beside plain - Tortoise and Hare cfg speed")
NOTES = ("Note", "MarkdownNote")  # are for the page alone


class Server:
    """page: "pinned", the one that belongs to this ComfyUI, or "newer"."""

    def __init__(self, folder: Path, page: str = "pinned") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "server.log"
        pages = [] if page == "pinned" else [str(NEWER_PAGE)]
        command = [sys.executable, str(HERE / "serve.py"), str(folder), str(port), *pages]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
        try:
            self._until(lambda: self.get("/system_stats"))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:  # a busy machine
            self.process.kill()
            self.process.wait()

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if "json" in answer.headers["Content-Type"] else body

    def example(self, name: str) -> Any:
        """An example workflow, as the page gets it."""
        return self.get(f"/api/workflow_templates/tortoise_hare_guidance/{urllib.parse.quote(name)}.json")

    def queue(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """Runs a workflow in the API's format, and returns what its output nodes have shown."""
        body = json.dumps({"prompt": prompt}).encode()
        request = urllib.request.Request(self.url + "/prompt", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                number = json.load(answer)["prompt_id"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None
        history = self._until(lambda: self.get(f"/history/{number}").get(number))
        assert history["status"]["status_str"] == "success", history["status"]
        return history["outputs"]

    def _until(self, ready: Any) -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            try:
                if found := ready():
                    return found
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.2)
        raise AssertionError(f"no answer within {PATIENCE} s\n{self.log.read_text()[-2000:]}")


def as_prompt(workflow: dict[str, Any], nodes: dict[str, Any]) -> dict[str, Any]:
    """A saved workflow in the format of the API, with the node definitions of /object_info."""
    sources = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt = {}
    for node in (node for node in workflow["nodes"] if node["type"] not in NOTES):
        given = iter(node["widgets_values"])
        inputs = {}
        for item in node["inputs"]:
            if item["link"] is not None:
                inputs[item["name"]] = sources[item["link"]]
            elif "widget" in item:
                inputs[item["name"]] = next(given)
                options = definition(nodes[node["type"]], item["name"])
                if options.get("control_after_generate"):
                    next(given)  # "fixed" or "randomize" is for the page alone
        assert not list(given), f"{node['type']} has more values than widgets"
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return prompt


def definition(node: dict[str, Any], name: str) -> dict[str, Any]:
    entries = {**node["input"].get("required", {}), **node["input"].get("optional", {})}
    return entries[name][1] if len(entries[name]) > 1 else {}
