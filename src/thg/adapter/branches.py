"""Answers the network calls of a step: `OneCall` where it has all branches, `TwoCalls` where each has its own.

At each step the guide decides whether the unconditional branch runs. If not, its output is e_u = e_c - d with the
predicted term d; the pipeline's own guidance formula is applied to it as usual.

Each of the two keeps what it knows of the current step, and of the current pass over the time steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thg.adapter.call import Call, same_arguments
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.outputs import assemble, branch_terms, difference, expand_rows, main_output, unconditional
from thg.adapter.verify import Step
from thg.errors import UnsupportedPipelineError
from thg.plans.run import Term

if TYPE_CHECKING:
    from thg.adapter.run import GuidedRun

CONDITIONAL, UNCONDITIONAL = ("cond", "pred_cond"), ("uncond", "pred_uncond")  # diffusers' cache contexts
EXTRA = ("uncond_stg", "uncond_modality")  # cache contexts of other guidance methods, with one branch per call


class OneCall:
    """All branches of a step in one call, stacked along the batch.

    undecided: a call with which nothing was done yet, since only the scheduler's input will show if it is guided.
    """

    def __init__(self, run: GuidedRun, layout: Batched) -> None:
        self._run, self._layout = run, layout
        self._rows: int | None = None  # of a guided call
        self._has_leapt = False
        self.undecided: tuple[Call, Any] | None = None
        self._guided = False  # in the current step
        self._output: Any = None  # of an evaluated step
        self._further: list[Any] = []

    def answer(self, call: Call) -> Any:
        """A call with all branches of a step, or with one branch if guidance is off."""
        run = self._run
        if call.context in EXTRA:
            return self._noted(run.network(call).apart(call))
        layout = self._layout.at_present(run.pipe)
        n = len(layout.branches)
        if self.undecided is not None or (self._guided and call.rows == self._rows):
            raise UnsupportedPipelineError(
                "it calls its network with all branches more than once between two steps of its scheduler"
            )
        if self._rows is None and call.rows % n == 0:
            if not run.says_guided:
                if not layout.explained:
                    return self._one_branch(call)
                run.network(call)  # its caches start empty
                self.undecided = (call, run.as_it_comes(call))
                return self.undecided[1]
            self._rows = call.rows
        if call.rows != self._rows:
            return self._one_branch(call)
        run.begin_guided_step()
        self._guided = True
        if run.guide.evaluates(run.step):
            return self._evaluated(call, layout)
        output = self._in_leap(call, layout)
        run.count(len(layout.kept), instead_of=n)
        kept = dict(zip(layout.kept, branch_terms(output, len(layout.kept)), strict=True))
        conditional = kept[layout.cond]
        parts = [kept.get(k, conditional) for k in range(n)]
        return _filled(output, parts, layout, run.guide.predict(run.step, conditional))

    def control(self, call: Call) -> Any:
        """A call of a ControlNet, which comes before the denoiser's call of the same step."""
        run = self._run
        if call.rows != self._rows or run.guide.evaluates(run.step + 1):
            return call()
        layout = self._layout.at_present(run.pipe)
        # the rows of the predicted branches are never read: the denoiser skips them as well
        n = len(layout.branches)
        return expand_rows(call.keeping(layout.kept, of=n)(), n, layout.kept)

    def _evaluated(self, call: Call, layout: Batched) -> Any:
        """Runs all branches and passes the new term to the guide."""
        run, n = self._run, len(layout.branches)

        def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
            parts = branch_terms(call.with_sample(sample, time)(), n)
            return parts[layout.cond], _term(parts, layout)

        if run.visitor is not None:
            run.visitor.visit(run.step, call.sample, call.time, evaluate)
        output = run.network(call).all_branches(call, n, layout.kept)
        run.count(n, instead_of=n)
        parts = branch_terms(output, n)
        used = run.observe(parts[layout.cond], _term(parts, layout))
        self._output = output if used is None else _filled(output, parts, layout, used)
        return self._output

    def _in_leap(self, call: Call, layout: Batched) -> Any:
        """Runs a part of the branches. The first time shows whether the network supports that."""
        run = self._run
        try:
            with layout.without_predicted(run.pipe):
                output = run.network(call).conditional(call.keeping(layout.kept, of=len(layout.branches)))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if self._has_leapt:
                raise
            raise UnsupportedPipelineError(
                f"its network does not run with a part of its branches ({type(error).__name__}: {error}); a cache in "
                "it that thg does not know may be why"
            ) from error
        self._has_leapt = True
        return output

    def _one_branch(self, call: Call) -> Any:
        """A call with a single branch: a step without guidance, or one more call within a guided step."""
        run = self._run
        network = run.network(call)
        if run.begun:
            output = self._noted(network.apart(call))
        else:
            run.begin_step()
            output = network.conditional(call)
        run.count(1, instead_of=1)
        return output

    def _noted(self, output: Any) -> Any:
        self._further.append(output)
        return output

    # -- the end of a step

    def evaluated_step(self) -> Step | None:
        """The outputs of this step, if all branches were evaluated in it."""
        output = self._output if self.undecided is None else self.undecided[1]
        if output is None:
            return None
        layout = self._layout.at_present(self._run.pipe)
        whole = _as_one(output)
        if whole is None:
            return None
        further = (tensor for other in self._further if (tensor := _as_one(other)) is not None)
        return Step(whole.chunk(len(layout.branches)), layout.cond, tuple(further), whole)

    def decided(self) -> Term | None:
        """Treats the undecided call as a guided one, whose rows the guide has to change if it returns a term."""
        assert self.undecided is not None
        call, output = self.undecided
        layout = self._layout.at_present(self._run.pipe)
        self._rows = call.rows
        parts = branch_terms(output, len(layout.branches))
        self._run.begin_guided_step()
        self._run.guide.evaluates(self._run.step)
        return self._run.observe(parts[layout.cond], _term(parts, layout))

    def not_guided(self) -> None:
        """The step had one branch, although the pipeline says otherwise."""
        self._rows = None

    def end_step(self) -> None:
        self.undecided, self._output, self._guided = None, None, False
        self._further.clear()


class TwoCalls:
    """A call for each branch.

    The unconditional output of a leap is e_u = e_c - d, so e_c is needed first. If the conditional call comes second,
    it is made ahead of time: the conditional call of the previous step is repeated with the new sample and time as soon
    as the unconditional call arrives; when the pipeline then makes the call itself, it gets that output. This is
    correct if the conditional arguments are the same objects from step to step. The first two guided steps are
    evaluated to see that; if the arguments change, nothing is skipped from then on.
    """

    undecided = None

    def __init__(self, run: GuidedRun, layout: Sequential) -> None:
        self._run, self._layout = run, layout
        self._first: Call | None = None  # the first call of the current step, until that of the other branch
        self._output: Any = None  # the output of one of them
        self._ahead: Call | None = None  # the last conditional call, where it comes second
        self._steady = False  # its arguments were the same at two steps
        self._evaluated: list[Any] = []  # the outputs of this step, conditional first, if both ran
        self._further: list[Any] = []

    def answer(self, call: Call) -> Any:
        """A call with one branch."""
        if self._layout.cond == 0:
            return self._conditional_first(call)
        return self._unconditional_first(call)

    def _conditional_first(self, call: Call) -> Any:
        run = self._run
        second = call.name == self._layout.unconditional or call.context in UNCONDITIONAL
        if not second and call.context not in CONDITIONAL:
            second = run.begun
        if second and self._first is not None:
            conditional, output = self._first, self._output
            self._first = self._output = None
            run.begin_guided_step()
            return self._unconditional_output(conditional, output, call)
        if second:
            return self._further_call(call)
        run.begin_step()
        self._first = call.kept()
        refresh = run.was_guided and run.guide.evaluates(run.step)  # assumed: the other branch is called later
        self._output = self._counted(run.network(call).conditional(call, refresh))
        return self._output

    def _unconditional_first(self, call: Call) -> Any:
        run = self._run
        if not run.begun:
            run.begin_step()
            self._first = call
            return self._unconditional_ahead(call)
        if self._first is None:
            return self._further_call(call)
        first, self._first = self._first, None
        made, self._ahead = self._ahead, call.kept()
        run.begin_guided_step()
        same = made is None or same_arguments(made.with_sample(None, None), call.with_sample(None, None))
        if not same or (self._steady and made is not None and made.module is not call.module):
            raise UnsupportedPipelineError(
                "the arguments of its conditional call, which comes second, change at each step"
            )
        if self._steady:
            return self._output
        self._steady = made is not None
        return self._evaluated_conditional(call, first)

    def _further_call(self, call: Call) -> Any:
        output = self._counted(self._run.network(call).apart(call))
        self._further.append(output)
        return output

    def _unconditional_ahead(self, call: Call) -> Any:
        """An unconditional call that comes first. From the third guided step on, the conditional call is made here."""
        run = self._run
        if self._ahead is None or not self._steady:
            self._output = self._counted(run.network(call).apart(call))
            return self._output
        partner = self._ahead.with_sample(call.sample, call.time)
        if self._layout.unconditional is None:  # some pipelines change to another network in the middle of a run
            partner = replace(partner, network=call.network)
        self._ahead = partner
        refresh = run.guide.evaluates(run.step)
        self._output = self._counted(run.network(partner).conditional(partner, refresh))
        return self._unconditional_output(partner, self._output, call)

    def _evaluated_conditional(self, call: Call, first: Call) -> Any:
        """The conditional call of the first two guided steps; the unconditional branch has run before it."""
        run, other = self._run, self._output
        self._visit(call, first)
        output = self._counted(run.network(call).conditional(call, refresh=True))
        (e_c,), (e_u,) = branch_terms(output, 1), branch_terms(other, 1)
        if run.observe(e_c, difference(e_c, e_u)) is not None:
            raise UnsupportedPipelineError("its plan changes the first steps, whose unconditional call comes first")
        self._evaluated = [output, other]
        return output

    def _unconditional_output(self, first: Call, output: Any, call: Call) -> Any:
        """The unconditional output of a step, evaluated or predicted. first: the conditional call, and its output."""
        run = self._run
        (conditional,) = branch_terms(output, 1)
        if not run.guide.evaluates(run.step):
            run.count(0, instead_of=1)
            term = run.guide.predict(run.step, conditional)
            return assemble(output, [unconditional(conditional, term)])
        self._visit(first, call)
        own = self._counted(run.network(call).apart(call))
        (other,) = branch_terms(own, 1)
        used = run.observe(conditional, difference(conditional, other))
        result = own if used is None else assemble(own, [unconditional(conditional, used)])
        self._evaluated = [output, result]
        return result

    def _visit(self, conditional: Call, other: Call) -> None:
        """Passes the step to a guide that also evaluates the network between steps."""

        def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
            e_c, e_u = (branch_terms(call.with_sample(sample, time)(), 1)[0] for call in (conditional, other))
            return e_c, difference(e_c, e_u)

        if self._run.visitor is not None:
            self._run.visitor.visit(self._run.step, other.sample, other.time, evaluate)

    def _counted(self, output: Any) -> Any:
        """An output for which the network ran with one branch."""
        self._run.count(1, instead_of=1)
        return output

    # -- the end of a step

    def evaluated_step(self) -> Step | None:
        """The outputs of this step, if both branches were evaluated in it."""
        tensors = [tensor for output in self._evaluated if (tensor := _as_one(output)) is not None]
        further = (tensor for other in self._further if (tensor := _as_one(other)) is not None)
        return Step(tuple(tensors), 0, tuple(further)) if len(tensors) == 2 else None

    def not_guided(self) -> None:
        """The step had no effect of guidance."""

    def end_step(self) -> None:
        self._first = None
        self._evaluated.clear()
        self._further.clear()


def _term(parts: Sequence[Term], layout: Batched) -> Term:
    """The differences of the predicted branches, one after the other."""
    return tuple(d for k in layout.skipped for d in difference(parts[layout.cond], parts[k]))


def _filled(template: Any, parts: Sequence[Term], layout: Batched, term: Term | None) -> Any:
    """The output with the predicted branches inserted: e_u = e_c - d."""
    parts, conditional = list(parts), parts[layout.cond]
    for place, k in enumerate(layout.skipped):
        own = None if term is None else term[place * len(conditional) : (place + 1) * len(conditional)]
        parts[k] = unconditional(conditional, own)
    return assemble(template, parts)


def _as_one(output: Any) -> Tensor | None:
    """The first tensor of an output, or its list of samples as one; None if they have different sizes."""
    tensors = main_output(output)
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    return torch.stack(tensors) if len({tensor.shape for tensor in tensors}) == 1 else None
