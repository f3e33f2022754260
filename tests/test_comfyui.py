"""The folder of the ComfyUI nodes, as far as it can be checked without ComfyUI (`make test-comfyui` has the rest)."""

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import thg

FOLDER = Path(__file__).parent.parent / "comfyui" / "tortoise_hare_guidance"


def test_the_copy_of_the_core_is_current():
    files = runpy.run_path(str(FOLDER.parent / "make_core.py"))["core_files"]()
    core = FOLDER / "core"
    there = {str(path.relative_to(core)): path.read_text() for path in core.rglob("*.py")}
    assert there == files, "write: make comfyui"


def test_the_folder_has_the_version_of_the_package():
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == ("tortoise-hare-guidance", thg.__version__.split(".dev")[0])


def test_the_copy_needs_neither_thg_nor_diffusers():
    code = f"""
import sys
sys.modules["thg"] = sys.modules["diffusers"] = None
sys.path.insert(0, {str(FOLDER)!r})
from core.plans.planners import tapered
from core.plans.guide import Run
print(tapered(0.65).plan(Run.of(20)).nfe)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=FOLDER)
    assert done.stdout.strip() == "26", done.stderr
