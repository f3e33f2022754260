"""Import stubs for torchvision and torchaudio, which ComfyUI imports at its start and nothing here needs.

Their wheels may not fit the torch that is there. transformers goes by what it finds, so it is asked before.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

from transformers.utils.import_utils import is_torchaudio_available, is_torchvision_available

NAMES = ("torchvision", "torchaudio")


class Stub(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in NAMES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Stub:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    assert not is_torchvision_available()
    assert not is_torchaudio_available()
    sys.meta_path.append(Finder())
