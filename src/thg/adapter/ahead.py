"""Two calls per step with the unconditional one first: the conditional call is made ahead of time.

The unconditional output is e_u = e_c - d, so e_c is needed first. From the second guided step on, the conditional call
of the previous step is repeated with the new sample and time as soon as the unconditional call arrives; when the
pipeline then makes the call itself, it gets that output. This is correct if the conditional arguments are the same
objects from step to step. If they are not, the call is made unchanged, and nothing is skipped from then on.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thg.adapter import rows
from thg.adapter.call import Call
from thg.adapter.caller import Caller
from thg.adapter.section import Section
from thg.adapter.terms import difference, unconditional
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Term, Visitor


def answer_ahead(section: Section, caller: Caller, call: Call) -> Any:
    """A call with one branch: the unconditional one comes first."""
    if section.step < 0 or not section.same_step(caller, call):
        section.next_step(caller, call)
        return _first(section, call)
    if section.conditional is None:  # a further call of this step
        section.count(1, instead_of=1)
        return section.network(call).apart(call)
    first, section.conditional = section.conditional, None
    return _second(section, first, call)


def _first(section: Section, call: Call) -> Any:
    """The unconditional call of a step."""
    section.conditional = call  # waits for its conditional partner
    if section.ahead is None:
        section.output = section.network(call).apart(call)
        section.count(1, instead_of=1)
        return section.output
    partner = section.ahead.with_sample(call.sample, call.time)
    evaluates = section.guide.evaluates(section.step)
    if evaluates:
        _visit(section, partner, call)
    section.output = section.network(call).first_of_two(partner, evaluates)
    section.count(1, instead_of=1)
    (conditional,) = rows.branch_terms(section.output, 1)
    if not evaluates:
        section.count(0, instead_of=1)
        return rows.assemble(
            section.output, [unconditional(conditional, section.guide.predict(section.step, conditional))]
        )
    own = section.network(call).apart(call)
    section.count(1, instead_of=1)
    (parts,) = rows.branch_terms(own, 1)
    used = section.guide.observe(section.step, conditional, difference(conditional, parts))
    return own if used is None else rows.assemble(own, [unconditional(conditional, used)])


def _second(section: Section, first: Call, call: Call) -> Any:
    """The conditional call of the same step."""
    before, section.ahead = section.ahead, call.kept()
    section.guided_steps += 1
    if before is None:
        _visit(section, call, first)
        output = section.network(call).first_of_two(call, refresh=True)
        section.count(1, instead_of=1)
        (conditional,), (parts,) = rows.branch_terms(output, 1), rows.branch_terms(section.output, 1)
        if section.guide.observe(section.step, conditional, difference(conditional, parts)) is not None:
            raise UnsupportedPipelineError("its plan changes the first step, whose unconditional call comes first")
        return output
    if not same_arguments(before.with_sample(None, None), call.with_sample(None, None)):
        raise UnsupportedPipelineError("the arguments of its conditional call, which comes second, change at each step")
    return section.output


def _visit(section: Section, conditional: Call, unconditional: Call) -> None:
    """Passes the step to a guide that also evaluates the network between steps."""

    def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
        calls = (conditional, unconditional)
        e_c, e_u = (rows.branch_terms(call.with_sample(sample, time)(), 1)[0] for call in calls)
        return e_c, difference(e_c, e_u)

    if isinstance(section.guide, Visitor):
        section.guide.visit(section.step, unconditional.sample, unconditional.time, evaluate)


def same_arguments(one: Any, other: Any) -> bool:
    """Are these the same objects, including the entries of lists, tuples and dicts? Never waits for a device.

    Equal views of one tensor count as the same object.
    """
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        place, same_place = (
            (id(value._base), value.storage_offset(), value.shape, value.stride()) for value in (one, other)
        )
        return one._base is not None and place == same_place
    if isinstance(one, Call) and isinstance(other, Call):
        return same_arguments((one.args, one.kwargs), (other.args, other.kwargs))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_arguments(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_arguments, one, other))
    return isinstance(one, int | float | str) and isinstance(other, int | float | str) and one == other
