"""The calls of a network in one pass of a pipeline, with the caches inside it taken into account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thg.adapter.caches.known import caches_for, leaps
from thg.adapter.caches.unknown import counters, suspects, watchers
from thg.adapter.call import Call
from thg.adapter.outputs import assemble, branch_terms, rows_of, tensors_of
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Guide

_SHAPES = ("size", "shape", "dimension", "broadcast")  # words in error messages about mismatched shapes


class CachedNetwork:
    """A network and the caches inside it, with one method for each kind of call."""

    def __init__(self, module: Any, guide: Guide) -> None:
        self._module = module
        self.leaps, self.caches = leaps(guide), caches_for(module, guide)
        self._checked = False
        self._form: tuple[float, torch.Size] | None = None  # rows of the output per row of the input, and their shape

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
        output = self._branch_by_branch(call, n, keep) if self.caches else call()
        self._form = _form(output, call)
        return output

    def _branch_by_branch(self, call: Call, n: int, keep: Sequence[int]) -> Any:
        if len(keep) > 1:
            raise UnsupportedPipelineError(
                f"with a perturbed branch thg cannot use {self.caches[0].name}; disable it, or set pag_scale=0"
            )
        others = [k for k in range(n) if k not in keep]
        kept = self.conditional(call.keeping(keep, of=n), refresh=True)
        parts = branch_terms(self.apart(call.keeping(others, of=n)), len(others))
        parts.insert(keep[0], *branch_terms(kept, 1))
        return assemble(kept, parts)

    def in_leap(self, call: Call) -> Any:
        """The rows that run in a leap; detects unknown caches that fail on them."""
        try:
            output = self.conditional(call)
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            if isinstance(error, torch.OutOfMemoryError) or not any(word in str(error) for word in _SHAPES):
                raise
            raise self._broken(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}") from error
        if self._form is not None and _form(output, call) != self._form:
            shape = tuple(tensors_of(output)[0].shape)
            raise self._broken(f"for {call.rows} of its rows it returned the shape {shape}")
        return output

    def first_of_two(self, call: Call, refresh: bool) -> Any:
        """The conditional call of a pipeline with one call per branch, some of which a leap skips."""
        if self.leaps and not self._checked and (names := counters(self._module)):
            raise UnsupportedPipelineError(
                f"{names[0]} is in this {type(self._module).__name__}, and may count its calls or keep features from "
                "one to the next; it would confuse the branches when thg skips a call. Remove it, or thg.disable(pipe)"
            )
        self._checked = True
        return self.conditional(call, refresh)

    def _broken(self, what: str) -> UnsupportedPipelineError:
        names = suspects(self._module) or watchers(self._module)
        cause = f"It seems to be {names[0]}, which keeps tensors of earlier calls" if names else "A cache may be why"
        return UnsupportedPipelineError(
            f"this pipeline's network ({type(self._module).__name__}) fails on the conditional rows alone ({what}). "
            f"{cause}: remove it, or thg.disable(pipe). It has seen a call more than without thg in this run"
        )


def _form(output: Any, call: Call) -> tuple[float, torch.Size]:
    return rows_of(output) / call.rows, tensors_of(output)[0].shape[1:]
