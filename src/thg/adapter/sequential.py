"""Answers the network calls of pipelines that call their network once per branch.

The unconditional output of a leap is e_u = e_c - d, so e_c is needed first. If the conditional call comes second, it is
made ahead of time: the conditional call of the previous step is repeated with the new sample and time as soon as the
unconditional call arrives; when the pipeline then makes the call itself, it gets that output. This is correct if the
conditional arguments are the same objects from step to step. The first two guided steps are evaluated to see that; if
the arguments change, nothing is skipped from then on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thg.adapter.call import Call, same_arguments
from thg.adapter.caller import Caller
from thg.adapter.layouts import Sequential
from thg.adapter.outputs import assemble, branch_terms, difference, unconditional
from thg.adapter.section import Section
from thg.errors import UnsupportedPipelineError
from thg.plans.run import Term

CONDITIONAL, UNCONDITIONAL = ("cond", "pred_cond"), ("uncond", "pred_uncond")  # diffusers' cache contexts


def answer_sequential(section: Section, layout: Sequential, caller: Caller, call: Call) -> Any:
    """A call with one branch."""
    if layout.branches[0] == "cond":
        return _conditional_first(section, layout, caller, call)
    return _unconditional_first(section, layout, caller, call)


def _conditional_first(section: Section, layout: Sequential, caller: Caller, call: Call) -> Any:
    second = call.name == layout.unconditional or call.context in UNCONDITIONAL
    if not second and call.context not in CONDITIONAL:
        second = section.same_step(caller)
    if second and section.first is not None:
        conditional, output = section.first, section.output
        section.first = section.output = None
        section.guided_steps += 1
        section.guided_at = section.step
        return _unconditional_output(section, conditional, output, call)
    if second:  # a further call of this step
        return _counted(section, section.network(call).apart(call))
    section.next_step(caller, call)
    section.first = call.kept()
    guided = section.guided_at == section.step - 1  # assumed: the other branch is called later
    refresh = guided and section.guide.evaluates(section.step)
    section.output = _counted(section, section.network(call).first_of_two(call, refresh))
    section.keep_form(section.output)
    return section.output


def _unconditional_first(section: Section, layout: Sequential, caller: Caller, call: Call) -> Any:
    if not section.same_step(caller):
        section.next_step(caller, call)
        section.first = call
        return _unconditional_ahead(section, layout, call)
    if section.first is None:  # a further call of this step
        return _counted(section, section.network(call).apart(call))
    first, section.first = section.first, None
    made, section.ahead = section.ahead, call.kept()
    section.guided_steps += 1
    same = made is None or same_arguments(made.with_sample(None, None), call.with_sample(None, None))
    if not same or (section.steady and made is not None and made.module is not call.module):
        raise UnsupportedPipelineError("the arguments of its conditional call, which comes second, change at each step")
    if section.steady:
        return section.output
    section.steady = made is not None
    return _evaluated_conditional(section, call, first)


def _unconditional_ahead(section: Section, layout: Sequential, call: Call) -> Any:
    """An unconditional call that comes first. From the third guided step on, the conditional call is made here."""
    if section.ahead is None or not section.steady:
        section.output = _counted(section, section.network(call).apart(call))
        return section.output
    partner = section.ahead.with_sample(call.sample, call.time)
    if layout.unconditional is None:  # some pipelines change to another network in the middle of a run
        partner = replace(partner, network=call.network)
    section.ahead = partner
    evaluates = section.guide.evaluates(section.step)
    section.output = _counted(section, section.network(partner).first_of_two(partner, evaluates))
    return _unconditional_output(section, partner, section.output, call)


def _evaluated_conditional(section: Section, call: Call, unconditional: Call) -> Any:
    """The conditional call of the first two guided steps; the unconditional branch has run before it."""
    _visit(section, call, unconditional)
    output = _counted(section, section.network(call).first_of_two(call, refresh=True))
    (conditional,), (other,) = branch_terms(output, 1), branch_terms(section.output, 1)
    if section.guide.observe(section.step, conditional, difference(conditional, other)) is not None:
        raise UnsupportedPipelineError("its plan changes the first steps, whose unconditional call comes first")
    return output


def _unconditional_output(section: Section, first: Call, output: Any, call: Call) -> Any:
    """The unconditional output of a step, evaluated or predicted. first: the conditional call, and its output."""
    (conditional,) = branch_terms(output, 1)
    if not section.guide.evaluates(section.step):
        section.count(0, instead_of=1)
        term = section.guide.predict(section.step, conditional)
        return assemble(output, [unconditional(conditional, term)])
    _visit(section, first, call)
    own = _counted(section, section.network(call).apart(call))
    (other,) = branch_terms(own, 1)
    used = section.guide.observe(section.step, conditional, difference(conditional, other))
    return own if used is None else assemble(own, [unconditional(conditional, used)])


def _visit(section: Section, conditional: Call, unconditional: Call) -> None:
    """Passes the step to a guide that also evaluates the network between steps."""

    def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
        calls = (conditional, unconditional)
        e_c, e_u = (branch_terms(call.with_sample(sample, time)(), 1)[0] for call in calls)
        return e_c, difference(e_c, e_u)

    if section.visitor is not None:
        section.visitor.visit(section.step, unconditional.sample, unconditional.time, evaluate)


def _counted(section: Section, output: Any) -> Any:
    """An output for which the network ran with one branch."""
    section.count(1, instead_of=1)
    return output
