"""Answers the network calls of pipelines that send all branches of a step through the network in one call.

At each step the guide decides whether the unconditional branch runs. If not, only the conditional branch is evaluated,
and the unconditional output is e_u = e_c - d with the predicted term d; the pipeline's own guidance formula is applied
to it as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from thg.adapter.call import Call
from thg.adapter.caller import Caller
from thg.adapter.layouts import Batched
from thg.adapter.outputs import assemble, branch_terms, difference, expand_rows, unconditional
from thg.adapter.section import Section
from thg.errors import UnsupportedPipelineError
from thg.plans.run import Term

EXTRA = ("uncond_stg", "uncond_modality")  # cache contexts of other guidance methods, with one branch per call


def answer_batched(
    section: Section, layout: Batched, caller: Caller, call: Call, leap: AbstractContextManager[None]
) -> Any:
    """A call with all branches of a step, or with one branch if guidance is off. leap: a context for a leap."""
    if call.context in EXTRA:
        return section.network(call).apart(call)
    layout = layout.at_present(caller.pipe)
    n = len(layout.branches)
    if section.rows is None and caller.guidance_is_on:
        if call.rows % n:
            raise UnsupportedPipelineError(f"it sent {call.rows} rows to its network, not {n} branches")
        section.rows = call.rows
    if call.rows != section.rows:
        return _one_branch(section, caller, call)
    step = section.guided_step(caller, call)
    if section.guide.evaluates(step):
        return _evaluated(section, call, layout)
    with layout.without_predicted(caller.pipe), leap:
        output = section.network(call).in_leap(call.keeping(layout.kept, of=n))
    section.count(len(layout.kept), instead_of=n)
    kept = dict(zip(layout.kept, branch_terms(output, len(layout.kept)), strict=True))
    conditional = kept[layout.cond]
    parts = [kept.get(k, conditional) for k in range(n)]
    return _filled(output, parts, layout, section.guide.predict(step, conditional))


def _evaluated(section: Section, call: Call, layout: Batched) -> Any:
    """Runs all branches and passes the new term to the guide."""
    n, cond = len(layout.branches), layout.cond

    def read(output: Any) -> tuple[list[Term], Term]:
        parts = branch_terms(output, n)
        return parts, tuple(d for k in layout.skipped for d in difference(parts[cond], parts[k]))

    def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
        parts, term = read(call.with_sample(sample, time)())
        return parts[cond], term

    if section.visitor is not None:
        section.visitor.visit(section.step, call.sample, call.time, evaluate)
    output = section.network(call).all_branches(call, n, layout.kept)
    section.count(n, instead_of=n)
    section.keep_form(output)
    parts, term = read(output)
    used = section.guide.observe(section.step, parts[cond], term)
    return output if used is None else _filled(output, parts, layout, used)


def _one_branch(section: Section, caller: Caller, call: Call) -> Any:
    """A call with a single branch: a step without guidance, or one more call within a guided step."""
    network = section.network(call)
    if section.same_step(caller):
        output = network.apart(call)
    else:
        section.next_step(caller, call)
        output = network.conditional(call)
    section.count(1, instead_of=1)
    return output


def _filled(template: Any, parts: Sequence[Term], layout: Batched, term: Term | None) -> Any:
    """The output with the predicted branches inserted: e_u = e_c - d."""
    parts, conditional = list(parts), parts[layout.cond]
    for place, k in enumerate(layout.skipped):
        own = None if term is None else term[place * len(conditional) : (place + 1) * len(conditional)]
        parts[k] = unconditional(conditional, own)
    return assemble(template, parts)


def answer_control(section: Section, layout: Batched, caller: Caller, call: Call) -> Any:
    """A call of a ControlNet, which comes before the denoiser's call of the same step."""
    if call.rows != section.rows or section.guide.evaluates(section.step + 1):
        return call()
    layout = layout.at_present(caller.pipe)
    # the rows of the predicted branches are never read: the denoiser skips them as well
    n = len(layout.branches)
    return expand_rows(call.keeping(layout.kept, of=n)(), n, layout.kept)
