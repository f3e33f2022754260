"""Own methods and metrics in a file: "my_methods.py:Fading" is the class `Fading` of that file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from thg.bench.tables import ConfigError


def is_file(name: str) -> bool:
    return ".py:" in name


def from_file(name: str, base: Path) -> Any:
    """The object that a name such as "folder/file.py:Class" stands for. base: what the path is relative to."""
    path, _, attribute = name.rpartition(":")
    module = _module((base / Path(path).expanduser()).resolve())
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if inspect.isclass(value) and not key.startswith("_")]
        raise ConfigError(f"{module.__file__} has no {attribute!r}; it has the classes {', '.join(known) or '(none)'}")
    return getattr(module, attribute)


@cache
def _module(path: Path) -> ModuleType:
    name = f"thg_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no file {path}; write policy or metric as file.py:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up annotations
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported ({type(error).__name__}: {error})") from error
    return module


def code_digest(found: Any) -> str:
    """Of the file that a class or function comes from; empty for those of thg."""
    module = inspect.getmodule(found)
    if module is None or module.__name__.partition(".")[0] == "thg" or not module.__file__:
        return ""
    return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()[:16]
