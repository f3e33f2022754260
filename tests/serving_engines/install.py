"""The environment of an engine, for `make test-serving`: python tests/serving_engines/install.py build/serving/sglang

The folder's name is the engine's: sglang or vllm-omni. Several gigabytes, in pinned versions. If they cannot be
installed, the exit status is 3.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENGINES = {  # their metadata ask for builds with CUDA, so nothing is installed with its dependencies
    "sglang": ("sglang==0.5.23", "torchvision==0.28.0"),
    "vllm-omni": ("vllm==0.30.0", "vllm-omni==0.30.0", "torchvision==0.28.0", "torchaudio==2.11.0"),
    "ray": ("ray==2.60.0",),
}
PLATFORM = {  # a distribution that gives vLLM-Omni a platform without a GPU
    "METADATA": "Metadata-Version: 2.1\nName: thg-vllm-cpu\nVersion: 0\n",
    "entry_points.txt": "[vllm_omni.platform_plugins]\ncpu = tests.serving_engines.vllm_cpu:platform\n"
    "[vllm_omni.general_plugins]\ncpu = tests.serving_engines.vllm_cpu:prepare\n",
}
NOT_THERE = 3


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    engine, ready = folder.name, folder / "ready"
    requirements = [HERE / f"{name}-requirements.txt" for name in (engine, "tools")]
    pinned = "\n".join((*ENGINES[engine], *(file.read_text() for file in requirements)))
    if ready.exists() and ready.read_text() == pinned:
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-compile"]  # few of the thousands of modules are ever imported
    listed = [argument for file in requirements for argument in ("-r", str(file))]
    for wanted in (listed, ENGINES[engine], ["--no-build-isolation", "-e", str(ROOT)]):
        if subprocess.run([*pip, *wanted], check=False).returncode:
            print(f"not run: {engine} cannot be installed")
            return NOT_THERE
    (packages,) = folder.glob("lib/python3*/site-packages")
    shutil.copy(HERE / "sitecustomize.py", packages)
    if engine == "vllm-omni":
        shutil.rmtree(packages / "torchaudio" / "lib")  # for CUDA; without it torchaudio is plain Python
        (packages / "thg_vllm_cpu-0.dist-info").mkdir()
        for name, text in PLATFORM.items():
            (packages / "thg_vllm_cpu-0.dist-info" / name).write_text(text)
    ready.write_text(pinned)
    return 0


if __name__ == "__main__":
    sys.exit(main())
