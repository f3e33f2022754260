"""The folder of the ComfyUI nodes, as far as it can be checked without ComfyUI (`make test-comfyui` has the rest)."""

import runpy
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "comfyui" / "tortoise_hare_guidance"


def test_the_copy_of_the_core_is_current():
    files = runpy.run_path(str(FOLDER.parent / "make_core.py"))["core_files"]()
    core = FOLDER / "core"
    there = {str(path.relative_to(core)): path.read_text() for path in core.rglob("*.py")}
    assert there == files, "write: make comfyui"


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
