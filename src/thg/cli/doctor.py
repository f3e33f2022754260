"""`thg doctor`: versions, devices, extras, and the most common broken environments, each with its fix."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
from dataclasses import dataclass

import torch

from thg.distribution import EXTRAS, NAME, __version__, install_line
from thg.models import SHIPPED, ShippedName, shipped_path
from thg.processes import bfloat16_remedy, bfloat16_works

# Imported in a child process: a build for another torch fails on import, and breaks transformers.
FRAGILE = ("torchvision", "torchaudio")


@dataclass(frozen=True)
class Finding:
    """One line of the report. ok: None is neutral."""

    what: str
    result: str
    ok: bool | None = True


def run(args: argparse.Namespace) -> int:
    findings = [*_versions(), *_namesakes(), *_devices(), _bfloat16()]
    findings += [_extra(name, modules) for name, modules in EXTRAS.items()]
    findings += [*map(_fragile, FRAGILE), *map(_shipped, SHIPPED)]
    for finding in findings:
        mark = {True: "ok ", False: "BAD", None: " - "}[finding.ok]
        print(f"{mark}  {finding.what:22s} {finding.result}")
    return 1 if any(finding.ok is False for finding in findings) else 0


def _versions() -> list[Finding]:
    return [
        Finding("thg", __version__),
        Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
    ]


def _namesakes() -> list[Finding]:
    """Other distributions that install a module `thg`: the one installed last has overwritten files of the other."""
    others = {name for name in importlib.metadata.packages_distributions().get("thg", []) if name != NAME}
    remedy = "another project that installs a module thg over this one; write pip uninstall {0}, then install {1} again"
    return [Finding(other, remedy.format(other, NAME), ok=False) for other in sorted(others)]


def _devices() -> list[Finding]:
    if torch.cuda.is_available():
        return [Finding(f"cuda:{i}", torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        return [Finding("mps", "Apple GPU")]
    return [Finding("device", "no GPU: everything runs on the CPU", None)]


def _bfloat16() -> Finding:
    if bfloat16_works():
        return Finding("bfloat16 on the CPU", "works")
    return Finding("bfloat16 on the CPU", f"stops the process with an illegal instruction; {bfloat16_remedy()}", None)


def _extra(name: str, modules: tuple[str, ...]) -> Finding:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        return Finding(f"extra {name}", f"{', '.join(missing)} not installed: {install_line(name)}", None)
    return Finding(f"extra {name}", ", ".join(f"{module} {_version(module)}" for module in modules if module != "PIL"))


def _version(module: str) -> str:
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"


def _fragile(module: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(module, "not installed (not needed)", None)
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True)
    if done.returncode == 0:
        return Finding(module, _version(module))
    reason = (done.stderr.strip().splitlines() or ["the import fails"])[-1]
    why = f"built for another torch, which breaks transformers; write pip uninstall {module} ({reason})"
    return Finding(module, why, ok=False)


def _shipped(name: ShippedName) -> Finding:
    ok = (shipped_path(name) / "model_index.json").is_file()
    return Finding(f"shipped model {name}", "found" if ok else "missing: reinstall thg", ok)
