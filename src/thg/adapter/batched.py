"""Answers the network calls of pipelines that send all branches of a step through the network in one call.

At each step the guide decides whether the unconditional branch runs. If not, only the conditional branch is evaluated,
and the unconditional output is e_u = e_c - d with the predicted term d; the pipeline's own guidance formula is applied
to it as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from thg.adapter import rows
from thg.adapter.call import Call
from thg.adapter.caller import Caller
from thg.adapter.layouts import Batched
from thg.adapter.section import Section
from thg.adapter.terms import difference, unconditional
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Term, Visitor

EXTRA = ("uncond_stg", "uncond_modality")  # cache contexts of other guidance methods, with one branch per call
NOTHING = nullcontext()


def answer_batched(
    section: Section, layout: Batched, caller: Caller, call: Call, leap: AbstractContextManager[None] = NOTHING
) -> Any:
    """A call with all branches of a step, or with one branch if guidance is off. leap: a context entered around a
    leap."""
    if call.context in EXTRA:
        return section.network(call).apart(call)
    branches = layout.branches_of(caller.pipe)
    if section.rows is None and section.guidance_is_on(caller):
        if call.rows % len(branches):
            raise UnsupportedPipelineError(f"it sent {call.rows} rows to its network, not {len(branches)} branches")
        section.rows = call.rows
    if call.rows != section.rows:
        return _one_branch(section, caller, call)
    step = section.guided_step(caller, call)
    cond = branches.index("cond")
    predicted = [branches.index(name) for name in layout.predicted]
    keep = [k for k in range(len(branches)) if k not in predicted]
    if keep == [cond] and (own := section.predicted_conditional()) is not None:
        section.count(0, instead_of=len(branches))
        return _filled(section.template, [own] * len(branches), cond, predicted, section.guide.predict(step, own))
    if section.guide.evaluates(step):
        return _evaluated(section, call, len(branches), cond, predicted)
    with layout.without_predicted(caller.pipe), leap:
        output = section.network(call).in_leap(call.keeping(keep, of=len(branches)))
    section.count(len(keep), instead_of=len(branches))
    kept = dict(zip(keep, rows.branch_terms(output, len(keep)), strict=True))
    parts = [kept.get(k, kept[cond]) for k in range(len(branches))]
    return _filled(output, parts, cond, predicted, section.guide.predict(step, parts[cond]))


def _evaluated(section: Section, call: Call, n: int, cond: int, predicted: Sequence[int]) -> Any:
    """Runs all branches and passes the new term to the guide."""

    def read(output: Any) -> tuple[list[Term], Term]:
        parts = rows.branch_terms(output, n)
        return parts, tuple(d for k in predicted for d in difference(parts[cond], parts[k]))

    def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
        parts, term = read(call.with_sample(sample, time)())
        return parts[cond], term

    if isinstance(section.guide, Visitor):
        section.guide.visit(section.step, call.sample, call.time, evaluate)
    output = section.network(call).all_branches(call, n, [k for k in range(n) if k not in predicted])
    section.count(n, instead_of=n)
    section.keep_form(output)
    parts, term = read(output)
    used = section.guide.observe(section.step, parts[cond], term)
    return output if used is None else _filled(output, parts, cond, predicted, used)


def _one_branch(section: Section, caller: Caller, call: Call) -> Any:
    """A call with a single branch: a step without guidance, or one more call within a guided step."""
    network = section.network(call)
    if section.same_step(caller, call):
        output = network.apart(call)
    else:
        section.next_step(caller, call)
        output = network.conditional(call)
    section.count(1, instead_of=1)
    return output


def _filled(template: Any, parts: Sequence[Term], cond: int, predicted: Sequence[int], term: Term | None) -> Any:
    """The output with the predicted branches inserted: e_u = e_c - d."""
    parts, share = list(parts), len(parts[cond])
    for place, k in enumerate(predicted):
        own = None if term is None else term[place * share : (place + 1) * share]
        parts[k] = unconditional(parts[cond], own)
    return rows.assemble(template, parts)


def answer_control(section: Section, layout: Batched, caller: Caller, call: Call) -> Any:
    """A call of a ControlNet, which comes before the denoiser's call of the same step."""
    if call.rows != section.rows or section.guide.evaluates(section.step + 1):
        return call()
    branches = layout.branches_of(caller.pipe)
    keep = [k for k, name in enumerate(branches) if name not in layout.predicted]
    # the rows of the predicted branches are never read: the denoiser skips them as well
    return rows.expand_rows(call.keeping(keep, of=len(branches))(), len(branches), keep)
