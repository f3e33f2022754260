"""The environment of an engine, for `make test-serving`: python tests/serving_engines/install.py build/serving/sglang

Several gigabytes, in pinned versions. If they cannot be installed, the exit status is 3.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENGINES = {"sglang": ("sglang==0.5.23", "torchvision==0.28.0")}  # their metadata ask for builds with CUDA: no deps
NOT_THERE = 3


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    engine, ready = folder.name, folder / "ready"
    pinned = (HERE / f"{engine}-requirements.txt").read_text() + "\n".join(ENGINES[engine])
    if ready.exists() and ready.read_text() == pinned:
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    for wanted in (["-r", str(HERE / f"{engine}-requirements.txt"), "pytest", "iniconfig", "pluggy"], ENGINES[engine]):
        if subprocess.run([*pip, *wanted], check=False).returncode:
            print(f"not run: {engine} cannot be installed")
            return NOT_THERE
    subprocess.run([*pip, "setuptools", "hatchling", "pathspec", "trove-classifiers", "editables"], check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", str(ROOT)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    shutil.copy(HERE / "sitecustomize.py", packages)
    ready.write_text(pinned)
    return 0


if __name__ == "__main__":
    sys.exit(main())
