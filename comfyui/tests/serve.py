"""Starts ComfyUI's own server, on this machine's loopback alone, with a folder of its own.

    python serve.py FOLDER PORT [PAGE]

FOLDER/custom_nodes gets a copy of the nodes, as a user would make it, and the loader of the shipped models. PAGE is the
folder of another version of ComfyUI's page.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from pathlib import Path

import stubs
import torch

HERE = Path(__file__).parent
PACK = HERE.parent / "tortoise_hare_guidance"


def main() -> None:
    folder, port = Path(sys.argv[1]).absolute(), sys.argv[2]
    comfyui = Path(os.environ["COMFYUI"]).absolute()
    for source in (PACK, HERE / "shipped_models"):
        shutil.copytree(source, folder / "custom_nodes" / source.name, dirs_exist_ok=True)
    torch.set_num_threads(1)
    stubs.install()
    sys.path.insert(0, str(comfyui))
    os.chdir(comfyui)
    options = ["--front-end-root", sys.argv[3]] if len(sys.argv) > 3 else []
    options += ["--cpu", "--listen", "127.0.0.1", "--port", port, "--base-directory", str(folder)]
    sys.argv = ["main.py", *options, "--disable-api-nodes", "--database-url", "sqlite:///:memory:"]
    runpy.run_path(str(comfyui / "main.py"), run_name="__main__")


if __name__ == "__main__":
    main()
