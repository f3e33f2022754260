"""The inferred layouts of pipeline classes, and their check in each run.

A `Lesson` belongs to one enabled pipeline. At the first guided step of a run it infers the layout, or checks the known
one: the first time with one wait of the host, later by the shapes alone. If a step cannot be explained, the reason is
reported, and the run continues as plain CFG.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from thg.adapter.call import Call
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.learn import Learned, learn, unexplained
from thg.adapter.observe import SeenCall, candidates, outputs_of
from thg.adapter.readings import Outputs
from thg.errors import UnsupportedPipelineError


@dataclass(frozen=True)
class Known:
    """The result of an earlier run.

    ratio: elements passed to the scheduler, per element that the network returns. telling: whether another ratio means
    a step without guidance; False if the scheduler gets the rows of all branches.
    """

    learned: Learned
    ratio: Fraction
    telling: bool


SLACK = 30  # allowed residual of later steps: some formulas round more at low noise
_known_by_class: dict[type, Known] = {}


def forget() -> None:
    """Discards all layouts inferred in this process."""
    _known_by_class.clear()


class Lesson:
    """layout: given by name or by the user; None if it has to be inferred. cls: the pipeline's class."""

    def __init__(self, cls: type, layout: Batched | Sequential | None) -> None:
        self.cls = cls
        self.given = self.layout = layout
        self.refusal = ""  # why this pipeline always runs as plain CFG
        self._proven = False  # the given layout was checked, or cannot be
        self.has_leapt = False  # the network has run with a part of its branches
        self._has_guider = False  # an object that may combine the branches differently at each step
        self._unguided: object = None  # the shapes of a step without guidance in the current run
        self.unseen = ""  # description of such a step, if its shapes do not fit
        self._guarded: Learned | None = None  # the result that later steps of the current run are checked against
        self._errors: list[Tensor] = []  # their residuals; on the device until they are read

    def begin(self) -> None:
        """Starts a new run; the checks of the previous one take effect."""
        self.complaint()
        self._unguided = self._guarded = None
        self._errors, self.unseen = [], ""

    @property
    def guards(self) -> bool:
        """Whether further steps of this run have to be checked."""
        return self._guarded is not None

    def check(self, seen: list[SeenCall], passed: Tensor, sample: Tensor | None) -> None:
        """Checks a later step of the run whose layout was inferred. Does not wait for the device."""
        if self._guarded is not None:
            error = unexplained(self._guarded, outputs_of(seen), passed, sample)
            self._errors += [] if error is None else [error]

    def complaint(self) -> str:
        """What was wrong with later steps of the run, if anything; waits for the device."""
        if self._errors:
            errors = torch.stack(self._errors).tolist()
            self._errors = []
            wrong = sum(not error < SLACK for error in errors)
            if wrong:
                self.refusal = (
                    f"{wrong} of {len(errors)} later steps passed something to the scheduler that is not the "
                    "combination of the first one"
                )
        return self.refusal

    def refresh(self, pipe: Any) -> None:
        """Finds the layout for the pipeline's current networks."""
        self._has_guider = getattr(pipe, "guider", None) is not None
        self.layout = self.given if self._known is None else _with_twins(pipe, self._known.learned.layout)

    @property
    def _known(self) -> Known | None:
        """What an earlier run of this class has shown; None if the layout was given."""
        return _known_by_class.get(self.cls) if self.given is None else None

    @property
    def shapes_tell(self) -> bool:
        """Whether the shapes of a step show if it is guided."""
        return self.given is None and (self._known is None or self._known.telling)

    @property
    def place(self) -> int:
        """Index of the call with all branches among the calls of its network in a step."""
        return 0 if self._known is None else self._known.learned.place

    @property
    def words(self) -> str:
        """A description of the inferred layout."""
        return "" if self._known is None else self._known.learned.words

    @property
    def w(self) -> float | None:
        """The guidance scale of the step that the layout was inferred from."""
        return None if self._known is None else self._known.learned.w

    def infers_anew(self, scale: float | None) -> bool:
        """Whether the known layout has to be inferred again in each run.

        That is so if the pipeline does not tell its guidance scale, which the plan depends on, and with more than two
        branches, whose order depends on their scales. The plan of a run then does not depend on earlier runs.
        """
        return self._known is not None and (scale is None or len(self._known.learned.layout.branches) > 2)

    @property
    def _of_diffusers(self) -> bool:
        return self.cls.__module__.startswith("diffusers.")

    def doubts(self, call: Call) -> bool:
        """Whether the rows of a call are in an order that the known layout does not tell.

        It may be that of one sample, and the branches of several samples may alternate; in diffusers they do not.
        """
        if self._known is None or self._of_diffusers:
            return False
        layout, samples = self._known.learned.layout, self._known.learned.samples
        if isinstance(layout, Sequential) or samples > 1 or call.name not in layout.denoisers:
            return False
        return call.rows > len(layout.branches)

    def refuse(self, why: str) -> UnsupportedPipelineError:
        """Makes all further runs of this pipeline plain CFG. Returns the error that ends this one's leaps."""
        self.refusal = why
        return UnsupportedPipelineError(why)

    @contextmanager
    def first_leap(self) -> Iterator[None]:
        """A context for calls with a part of the branches; the first one shows whether the network supports that."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if self.has_leapt:
                raise
            why = f"its network does not run with a part of its branches ({type(error).__name__}: {error})"
            raise self.refuse(why) from error
        self.has_leapt = True

    def judge(self, seen: list[SeenCall], passed: Tensor, sample: Tensor | None, anew: bool = False) -> bool:
        """Infers the layout from a step, or checks the step against the known one. False if it is not guided.

        anew: infer it even if it is known. Raises an error if the run must not leap.
        """
        calls = outputs_of(seen)
        known = self._known
        if known is not None and known.telling and not anew:
            layout, ratio = known.learned.layout, _ratio(known.learned.layout, calls, passed)
            if ratio == known.ratio:
                _require_separable(seen, layout)
                return True
            if isinstance(layout, Batched) and ratio == known.ratio * len(layout.branches):
                return False
            del _known_by_class[self.cls]  # other options, another layout: infer it again
        elif self._proven or (self.given is not None and not self.given.explained):
            return True
        shapes = (passed.shape, [tensor.shape for call in calls for tensor in call.outputs])
        if shapes == self._unguided:
            return False
        found = learn(calls, passed, sample, idle=self._of_diffusers)
        if isinstance(found, Learned):
            self._found(found, seen, passed)
            return True
        if found.unguided:
            self._unguided, self.unseen = shapes, found.why if found.shapeless else ""
            return False
        if found.off and self.given is None:
            return False  # it may be on in a later step
        if found.same_output and self.given is not None:
            return True  # nothing to check: both branches are equal
        lasting = not found.again and self.given is None and self._known is None
        raise self.refuse(found.why) if lasting else UnsupportedPipelineError(found.why)

    def _found(self, found: Learned, seen: list[SeenCall], passed: Tensor) -> None:
        if self.given is None:
            _require_separable(seen, found.layout)
            calls, first = outputs_of(seen), self._known is None
            telling = not any(len(tensor) == len(passed) for call in calls[-1:] for tensor in call.outputs)
            telling = telling or isinstance(found.layout, Sequential)
            _known_by_class[self.cls] = Known(found, _ratio(found.layout, calls, passed), telling)
        else:
            if _order(found.layout) != _order(self.given):
                raise self.refuse(f"thg expected {_describe(self.given)}, and saw {found.words}")
            first = self._proven = True
        if first and not self._has_guider:
            self._guarded = found


def _order(layout: Batched | Sequential) -> tuple[type, int, int]:
    kind = Batched if isinstance(layout, Batched) else Sequential
    return kind, len(layout.branches), layout.branches.index("cond")


def _describe(layout: Batched | Sequential) -> str:
    calls = "one call" if isinstance(layout, Batched) else "a call for each"
    return f"{calls}: {', '.join(layout.branches)}"


def _ratio(layout: Batched | Sequential, calls: list[Outputs], passed: Tensor) -> Fraction:
    returned = [call for call in calls if call.network in layout.denoisers]
    return Fraction(passed.numel(), sum(tensor.numel() for tensor in returned[-1].outputs)) if returned else Fraction(0)


def _require_separable(seen: list[SeenCall], layout: Batched | Sequential) -> None:
    """Raises an error if a branch of these calls cannot run without the others."""
    for call in seen:
        if call.mixed and call.call.name in layout.denoisers and isinstance(layout, Batched):
            raise UnsupportedPipelineError(call.mixed)


def _with_twins(pipe: Any, layout: Batched | Sequential) -> Batched | Sequential:
    """The layout for all networks of the same kind: some pipelines have one for high and one for low noise."""
    networks = candidates(pipe)
    kinds = {type(networks[name]) for name in layout.denoisers if name in networks}
    alike = [name for name, network in networks.items() if type(network) in kinds]
    names = tuple(name for name in alike if name in layout.denoisers or name not in layout.networks)
    return replace(layout, denoisers=names or layout.denoisers)
