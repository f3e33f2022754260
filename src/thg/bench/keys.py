"""The address of a method's samples in a store: everything that determines them, so that nothing stale is reused.

Model (with a fingerprint of its weights), scheduler, prompts, seed, steps, guidance scale, policy with all options or
its plan, results of its preparation, and versions of the libraries. What runs through thg also depends on thg's own
code, which decides where a planner evaluates and how a leap is corrected: the source itself is part of the address, not
a version number that many states of a development tree share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from thg.bench.config import BenchConfig, Method, Model
from thg.bench.store import Series, Store
from thg.bench.tables import digest
from thg.distribution import versions
from thg.models import shipped_path

LIBRARIES = ("torch", "diffusers", "transformers")
NOT_IN_SAMPLES = ("bench", "cli", "studio", "plots")
"""Parts of thg that do not change a sample; bench/methods does."""
BLOCK_BYTES, BLOCKS_READ = 1 << 16, 16
"""Bytes and number of the blocks that are read of a large file, evenly spread."""


class StoredMethod:
    """A method in a store: what was prepared for it, and the series of its samples."""

    def __init__(self, store: Store, config: BenchConfig, method: Method, prompts: str) -> None:
        """prompts: the digest of the list that the indices refer to."""
        self.store = store
        self.method = method
        installed = versions()
        used = [*LIBRARIES, *method.policy.packages]
        self._what: dict[str, Any] = {
            "model": {**asdict(config.model_of(method)), "weights": weights(config.model)},
            "prompts": prompts,
            "seed": config.seed,
            "steps": method.steps,
            "guidance_scale": method.guidance_scale,
            "policy": method.policy_name,
            "options": method.options,
            "files": _files([p.absolute() for p in method.options.values() if isinstance(p, Path)], Path("/")),
            "versions": {name: installed.get(name, "") for name in used},
        }
        if method.policy_name != "cfg":
            self._what["code"] = [thg_code(), method.code]

    @property
    def prepared(self) -> dict[str, Any]:
        return self.store.prepared(self._what)

    def write_prepared(self, values: dict[str, Any]) -> None:
        self.store.write_prepared(self._what, values)

    @property
    def parts(self) -> Path:
        """A folder for the intermediate results of a long preparation."""
        return self.store.parts(self._what)

    @property
    def left_out(self) -> str:
        """Why the method is skipped here; empty if it is not."""
        return str(self.prepared.get("left_out", ""))

    @property
    def series(self) -> Series | None:
        """None while the method still has to be prepared, or if it is skipped."""
        prepared = self.prepared
        if "left_out" in prepared or (self.method.policy.needs_preparation and not prepared):
            return None
        plan = self.method.policy.plan_of(self.method.steps, prepared)
        how = {"policy": "plan", "options": plan.to_dict(), "prepared": {}} if plan else {"prepared": prepared}
        return self.store.series({**self._what, **how})

    def done(self) -> set[int]:
        """The indices of the existing samples."""
        series = self.series
        return set() if series is None else series.done()


def weights(model: Model, file: str = "model_index.json") -> str:
    """A fingerprint of the model's files: of their content for a folder, the commit for a model of the hub.

    Empty for one that has not been downloaded. file: that every download of it has.
    """
    if model.shipped is not None:
        return _folder(shipped_path(model.shipped))
    assert model.source is not None
    if Path(model.source).is_dir():
        return _folder(Path(model.source))
    from huggingface_hub import try_to_load_from_cache

    try:
        index = try_to_load_from_cache(model.source, file)
    except ValueError:  # not a name that the hub allows; loading it will say so
        return ""
    return Path(index).parent.name if isinstance(index, str) else ""  # the folder of a snapshot is its commit


def _folder(folder: Path) -> str:
    return _files([path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts], folder)


def _files(paths: Iterable[Path], folder: Path) -> str:
    states = [(path, path.stat()) for path in paths]
    return digest({path.relative_to(folder).as_posix(): _file(path, s.st_size, s.st_mtime_ns) for path, s in states})


@lru_cache(maxsize=1024)
def _file(path: Path, size: int, changed: int) -> str:
    """The digest of a file, of blocks of a large one."""
    content = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= BLOCK_BYTES * BLOCKS_READ:
            content.update(file.read())
        else:
            for number in range(BLOCKS_READ):
                file.seek(number * (size - BLOCK_BYTES) // (BLOCKS_READ - 1))
                content.update(file.read(BLOCK_BYTES))
    return content.hexdigest()


@cache
def thg_code(package: Path = Path(__file__).parents[1]) -> str:
    """A digest of the source of thg that makes samples."""
    parts = [(path, path.relative_to(package).parts) for path in package.rglob("*.py")]
    used = [path for path, p in parts if p[0] not in NOT_IN_SAMPLES or p[:2] == ("bench", "methods")]
    return _files(used, package)
