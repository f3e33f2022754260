"""The distribution: its name on package indexes, its version, its extras, and the command that installs them.

The name differs from the import name: `thg` on PyPI is another project.
"""

from __future__ import annotations

import importlib.metadata
import platform

from thg.errors import MissingExtraError

NAME = "tortoise-hare-guidance"
__version__ = "0.2.0"

EXTRAS = {  # extra -> the modules that it installs
    "diffusers": ("diffusers", "transformers", "accelerate", "PIL", "tqdm"),
    "metrics": ("scipy", "pydantic", "platformdirs"),
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
