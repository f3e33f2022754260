"""The environment of a measurement: date, commit, versions, device."""

from __future__ import annotations

import datetime
import platform
import subprocess
from pathlib import Path

import torch

from thg.distribution import versions


def environment(device: str) -> dict[str, str]:
    """Date, commit, system, device and versions, as strings."""
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
