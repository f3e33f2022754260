"""The address of a method's samples in a store, from everything that determines them, and of its preparation."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from thg.bench.config import BenchConfig, Method, Model
from thg.bench.store import Series, Store
from thg.distribution import __version__


class Place:
    """A method's place in a store: what was prepared for it, and the series of its samples."""

    def __init__(self, store: Store, config: BenchConfig, method: Method, prompts: str) -> None:
        """prompts: the digest of the list that the indices refer to."""
        self.store = store
        self.method = method
        self._what: dict[str, Any] = {
            "model": _model(config.model_of(method)),
            "prompts": prompts,
            "seed": config.seed,
            "steps": method.steps,
            "guidance_scale": method.guidance_scale,
            "policy": method.policy_name,
            "options": method.options,
        }
        if method.policy_name != "cfg":
            self._what["thg"] = __version__

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
        plan = self.method.policy.plan_of(prepared)
        how = {"policy": "plan", "options": plan.to_dict(), "prepared": {}} if plan else {"prepared": prepared}
        return self.store.series({**self._what, **how})


def _model(model: Model) -> dict[str, Any]:
    """The model's configuration; for a folder also the names and sizes of its files."""
    what: dict[str, Any] = model.model_dump()
    folder = Path(model.source or "")
    if model.source and folder.is_dir():
        sizes = sorted((str(p.relative_to(folder)), p.stat().st_size) for p in folder.rglob("*") if p.is_file())
        what["files"] = hashlib.sha256(str(sizes).encode()).hexdigest()
    return what
