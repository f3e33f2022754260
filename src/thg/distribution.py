"""The distribution: its name on package indexes, its version, its extras, and the environment that it runs in.

The name differs from the import name: `thg` on PyPI is another project.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from pathlib import Path

from thg.errors import MissingExtraError

NAME = "tortoise-hare-guidance"
__version__ = "0.2.0"

EXTRAS = {  # extra -> the modules that it installs
    "diffusers": ("diffusers", "transformers", "accelerate", "PIL", "tqdm"),
    "metrics": ("pydantic",),
    "plots": ("matplotlib",),
    "studio": ("fastapi", "uvicorn"),
    "datasets": ("datasets",),
    "lora": ("peft",),
}


def install_line(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{NAME}[{extra}]' (in a clone: pip install '.[{extra}]')"


def missing(what: str, extra: str) -> MissingExtraError:
    """The error for a feature whose extra is not installed. what: the feature, such as "the studio"."""
    *others, last = EXTRAS[extra]
    needed = f"{', '.join(others)} and {last}" if others else last
    return MissingExtraError(f"{what} needs {needed}; write {install_line(extra)}")


def missing_module(what: str, error: ModuleNotFoundError) -> ImportError:
    """The same for a failed import: names the extra that installs the module. Errors of other modules are returned."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return error if extra is None else missing(what, extra)


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    installed = {"thg": __version__, "python": platform.python_version()}
    for package in ("torch", "diffusers", "transformers", "accelerate", "numpy", "DeepCache", "cache-dit"):
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def environment(device: str) -> dict[str, str]:
    """Date, commit, system, device and versions of a measurement, as strings."""
    import torch

    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{device} ({_processor()})",
        "threads": str(torch.get_num_threads()),
    }
    return about | versions()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor() or platform.machine()


def _commit() -> str:
    """The commit of the running source, marked if it was modified; empty for an installed package."""
    here = str(Path(__file__).parent)

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", here, *words], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit} with changes" if commit and git("status", "--porcelain", "--", here) else commit
