"""The calls of a network in one pass of a pipeline, with the caches inside it taken into account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thg.adapter import rows
from thg.adapter.caches.known import Caches, find_caches
from thg.adapter.caches.unknown import counters, suspects, watchers
from thg.adapter.call import Call
from thg.errors import UnsupportedPipelineError
from thg.plans.both import PredictsConditional
from thg.plans.guide import Guide, Visitor

_SHAPES = ("size", "shape", "dimension", "broadcast")  # words in error messages about mismatched shapes


def caches_for(network: Any, guide: Guide) -> Caches:
    """The caches of a network in a run with this guide, without what an interrupted run has left in them.

    None if the guide does not leap: then the caches are not changed.
    """
    plan = guide.plan
    if not _leaps(guide):
        return Caches()
    caches = find_caches(network, 1 if plan is None else plan.hare_order)
    if caches and isinstance(guide, PredictsConditional):
        raise UnsupportedPipelineError(
            f"leap_both skips whole steps, and {caches.names[0]} inside this network counts them: use another "
            "plan with it, such as thg.within(0.01), or disable it"
        )
    if caches and isinstance(guide, Visitor):
        raise UnsupportedPipelineError(
            f"calibration measures the network itself, and {caches.names[0]} is inside this one: disable it, "
            "calibrate, and enable it again"
        )
    caches.empty()
    return caches


def _leaps(guide: Guide) -> bool:
    return guide.plan is None or guide.plan.nfe < 2 * guide.plan.steps


class CachedNetwork:
    """A network and the caches inside it, with one method for each kind of call."""

    def __init__(self, module: Any, guide: Guide) -> None:
        self._module = module
        self._leaps, self._caches = _leaps(guide), caches_for(module, guide)
        self._checked = False
        self._form: tuple[float, list[torch.Size]] | None = None  # output rows per input row, and their shapes
        self.cache_names = self._caches.names

    def conditional(self, call: Call, refresh: bool = False) -> Any:
        """The rows that run at each step. refresh: the caches compute everything, and keep it for later steps."""
        with self._caches.conditional(refresh):
            return call()

    def apart(self, call: Call) -> Any:
        """The rows of another branch: the caches compute everything, and keep nothing."""
        with self._caches.unconditional():
            return call()

    def all_branches(self, call: Call, n: int, keep: Sequence[int]) -> Any:
        """The rows of all `n` branches. keep: those that also run in a leap."""
        output = self._branch_by_branch(call, n, keep) if self._caches else call()
        self._form = _form(output, call)
        return output

    def _branch_by_branch(self, call: Call, n: int, keep: Sequence[int]) -> Any:
        if len(keep) > 1:
            raise UnsupportedPipelineError(
                f"with a perturbed branch thg cannot use {self.cache_names[0]}; disable it, or set pag_scale=0"
            )
        others = [k for k in range(n) if k not in keep]
        kept = self.conditional(call.keeping(keep, of=n), refresh=True)
        other = self.apart(call.keeping(others, of=n))
        parts = dict(zip(keep, rows.branch_terms(kept, len(keep)), strict=True))
        parts |= zip(others, rows.branch_terms(other, len(others)), strict=True)
        return rows.assemble(kept, [parts[k] for k in range(n)])

    def in_leap(self, call: Call) -> Any:
        """The rows that run in a leap; detects unknown caches that fail on them."""
        try:
            output = self.conditional(call)
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            if isinstance(error, torch.OutOfMemoryError) or not any(word in str(error) for word in _SHAPES):
                raise
            raise self._broken(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}") from error
        if self._form is not None and _form(output, call) != self._form:
            shapes = [tuple(tensor.shape) for tensor in rows.tensors_of(output)]
            raise self._broken(f"for {call.rows} of its rows it returned the shape {shapes[0]}")
        return output

    def first_of_two(self, call: Call, refresh: bool) -> Any:
        """The conditional call of a pipeline with one call per branch, some of which a leap skips."""
        if self._leaps and not self._checked and (names := counters(self._module)):
            raise UnsupportedPipelineError(
                f"{names[0]} is in this {type(self._module).__name__}, and may count its calls or keep features from "
                "one to the next; it would confuse the branches when thg skips a call. Remove it, or thg.disable(pipe)"
            )
        self._checked = True
        return self.conditional(call, refresh)

    def empty_caches(self) -> None:
        """Makes the caches forget everything, so that the next call, with any rows, computes everything."""
        self._caches.empty()

    def _broken(self, what: str) -> UnsupportedPipelineError:
        names = suspects(self._module) or watchers(self._module)
        cause = f"It seems to be {names[0]}, which keeps tensors of earlier calls" if names else "A cache may be why"
        return UnsupportedPipelineError(
            f"this pipeline's network ({type(self._module).__name__}) fails on the conditional rows alone ({what}). "
            f"{cause}: remove it, or thg.disable(pipe). It has seen a call more than without thg in this run"
        )


def _form(output: Any, call: Call) -> tuple[float, list[torch.Size]]:
    count, shapes = rows.form(output)
    return count / call.rows, shapes
