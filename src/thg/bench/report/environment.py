"""The environment of a benchmark: date, commit, versions, device."""

from __future__ import annotations

import datetime
import platform
import subprocess
from pathlib import Path

import torch

import thg
from thg.distribution import versions


def environment(device: str) -> dict[str, str]:
    """Date, commit, system, device and versions, as strings."""
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": _device(device),
        "threads": str(torch.get_num_threads()),
    }
    return about | versions()


def _device(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    return f"{device} ({_processor()})"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def _commit() -> str:
    """The commit of the running source, marked if it was modified; empty for an installed package."""
    here = Path(thg.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return f"{commit} with changes" if commit and git("status", "--porcelain", "--", str(here)) else commit
    except (OSError, subprocess.TimeoutExpired):
        return ""
