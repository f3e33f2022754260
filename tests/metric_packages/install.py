"""The environment of the packages, for `make test-metrics`: python tests/metric_packages/install.py build/metrics

The extra `metric-packages`, of about two gigabytes. If it cannot be installed, the exit status is 3.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_THERE = 3


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    python, ready = folder / "bin" / "python", folder / "ready"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"]["metric-packages"]
    if ready.exists() and ready.read_text().splitlines() == wanted:
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if subprocess.run([*pip, *wanted], check=False).returncode:
        print("not run: the packages cannot be installed")
        return NOT_THERE
    if subprocess.run([python, "-c", "import torchvision"], capture_output=True, check=False).returncode:
        # torch is a build for CPUs, for which the index has neither of the two: without their compiled parts they work
        (packages,) = folder.glob("lib/python3*/site-packages")
        shutil.copy(ROOT / "tests" / "serving_engines" / "sitecustomize.py", packages)
        shutil.rmtree(packages / "torchaudio" / "lib")
    ready.write_text("\n".join(wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
