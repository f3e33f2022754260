"""The calls of a network in one pass of a pipeline, with the caches inside it taken into account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thg.adapter.caches.known import caches_for
from thg.adapter.call import Call
from thg.adapter.outputs import assemble, branch_terms
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Guide


class CachedNetwork:
    """A network and the caches inside it, with one method for each kind of call."""

    def __init__(self, module: Any, guide: Guide) -> None:
        self.caches = caches_for(module, guide)

    def conditional(self, call: Call, refresh: bool = False) -> Any:
        """The rows that run at each step. refresh: the caches compute everything, and keep it for later steps."""
        if not self.caches:
            return call()
        with self.caches.conditional(refresh):
            return call()

    def apart(self, call: Call) -> Any:
        """The rows of another branch: the caches compute everything, and keep nothing."""
        with self.caches.unconditional():
            return call()

    def all_branches(self, call: Call, n: int, keep: Sequence[int]) -> Any:
        """The rows of all `n` branches. keep: those that also run in a leap."""
        if not self.caches:
            return call()
        if len(keep) > 1:
            raise UnsupportedPipelineError(
                f"with a perturbed branch thg cannot use {self.caches[0].name}; disable it, or set pag_scale=0"
            )
        others = [k for k in range(n) if k not in keep]
        kept = self.conditional(call.keeping(keep, of=n), refresh=True)
        parts = branch_terms(self.apart(call.keeping(others, of=n)), len(others))
        parts.insert(keep[0], *branch_terms(kept, 1))
        return assemble(kept, parts)
