"""A clone with its environment in a folder called like the package, below one with spaces and other letters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import thg

ROOT = Path(__file__).parents[2]
PARTS = ("src", "tests", "docs", "comfyui", "pyproject.toml", "README.md", "CONTRIBUTING.md")
TESTS = (  # those that find files by their paths, or tell thg's files from others
    "tests/device/test_device.py::test_every_family[SD 1.5-torch.float32]",
    "tests/device/test_own_loop.py::test_the_loop_of_sample_does_not_wait",
    "tests/test_package.py::test_import_direction",
    "tests/test_docs.py::test_the_map_of_the_code_is_the_tree",
    "tests/test_comfyui.py::test_the_copy_of_the_core_is_current",
)
pytestmark = pytest.mark.slow


def test_a_clone_in_any_folder(tmp_path):
    clone = tmp_path / "für meine 絵" / "thg"
    for part in PARTS:
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, clone / part, ignore=ignore)
        else:
            shutil.copy(ROOT / part, clone / part)
    (clone / ".venv").symlink_to(sys.prefix, target_is_directory=True)  # as `make test` has it, below the clone
    python = clone / ".venv" / Path(sys.executable).relative_to(sys.prefix)
    program = "import sys, pytest, thg; print(thg.__file__); sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [python, "-c", program, "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(done.stdout.splitlines()[0]) == clone / "src" / Path(thg.__file__).relative_to(ROOT / "src")
    passed = [line for line in done.stdout.splitlines() if " passed" in line]
    assert passed, done.stdout
    assert "skipped" not in passed[-1]
