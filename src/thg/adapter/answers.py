"""Answers the network calls of guided steps: branches are run, predicted and joined here.

At each step the guide decides whether the unconditional branch runs. If not, only the conditional branch is evaluated,
and the unconditional output is e_u = e_c - d with the predicted term d; the pipeline's own guidance formula is applied
to it as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from thg.adapter import rows
from thg.adapter.ahead import answer_ahead
from thg.adapter.call import Call
from thg.adapter.caller import Caller
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.section import Section
from thg.adapter.terms import difference, unconditional
from thg.errors import UnsupportedPipelineError
from thg.plans.both import PredictsConditional
from thg.plans.guide import Term, Visitor

# Names of diffusers' cache contexts. The extra ones are calls of other guidance methods, with one branch each.
CONDITIONAL, UNCONDITIONAL = ("cond", "pred_cond"), ("uncond", "pred_uncond")
EXTRA = ("uncond_stg", "uncond_modality")
NOTHING = nullcontext()


# -- all branches in one call


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
    if keep == [cond] and (own := _predicted_conditional(section, step)) is not None:
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


def _predicted_conditional(section: Section, step: int) -> Term | None:
    """The predicted conditional branch, with the types of the network's outputs; None if it must run."""
    guide = section.guide
    own = guide.conditional(step) if isinstance(guide, PredictsConditional) else None
    if own is None:
        return None
    dtypes = [output.dtype for output in rows.tensors_of(section.template)]
    return tuple(part.to(dtype) for part, dtype in zip(own, dtypes, strict=False))  # a template may have more samples


def _filled(template: Any, parts: Sequence[Term], cond: int, predicted: Sequence[int], term: Term | None) -> Any:
    """The output with the predicted branches inserted: e_u = e_c - d."""
    parts, share = list(parts), len(parts[cond])
    for place, k in enumerate(predicted):
        own = None if term is None else term[place * share : (place + 1) * share]
        parts[k] = unconditional(parts[cond], own)
    return rows.assemble(template, parts)


# -- one call per branch


def answer_sequential(section: Section, layout: Sequential, caller: Caller, call: Call) -> Any:
    """A call with one branch."""
    if layout.branches[0] != "cond":
        return answer_ahead(section, caller, call)
    if call.context in CONDITIONAL or call.context in UNCONDITIONAL:
        second = call.context in UNCONDITIONAL
    else:
        second = call.role == "unconditional" or section.same_step(caller, call)
    if second and section.conditional is not None:
        return _second(section, call)
    if not second:
        section.next_step(caller, call)
        section.conditional = call.kept()
        guided = section.guided_at == section.step - 1  # assumed: the other branch is called later
        if guided and (own := _predicted_conditional(section, section.step)) is not None:
            section.count(0, instead_of=1)
            section.output = rows.assemble(section.template, [own])
            return section.output
        refresh = guided and section.guide.evaluates(section.step)
        output = section.output = section.network(call).first_of_two(call, refresh)
        section.keep_form(output)
    else:
        output = section.network(call).apart(call)
    section.count(1, instead_of=1)
    return output


def _second(section: Section, call: Call) -> Any:
    """The unconditional branch of the current step."""
    first, output = section.conditional, section.output
    assert first is not None
    section.conditional = section.output = None
    section.guided_steps += 1
    section.guided_at = section.step
    (conditional,) = rows.branch_terms(output, 1)
    if not section.guide.evaluates(section.step):
        section.count(0, instead_of=1)
        term = section.guide.predict(section.step, conditional)
        return rows.assemble(output, [unconditional(conditional, term)])

    def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
        e_c, e_u = (rows.branch_terms(branch.with_sample(sample, time)(), 1)[0] for branch in (first, call))
        return e_c, difference(e_c, e_u)

    if isinstance(section.guide, Visitor):
        section.guide.visit(section.step, call.sample, call.time, evaluate)
    own = section.network(call).apart(call)
    section.count(1, instead_of=1)
    (parts,) = rows.branch_terms(own, 1)
    used = section.guide.observe(section.step, conditional, difference(conditional, parts))
    return own if used is None else rows.assemble(own, [unconditional(conditional, used)])


# -- ControlNets


def answer_control(section: Section, layout: Batched, caller: Caller, call: Call) -> Any:
    """A call of a ControlNet, which comes before the denoiser's call of the same step."""
    if call.rows != section.rows or section.guide.evaluates(section.step + 1):
        return call()
    branches = layout.branches_of(caller.pipe)
    keep = [k for k, name in enumerate(branches) if name not in layout.predicted]
    # the rows of the predicted branches are never read: the denoiser skips them as well
    return rows.expand_rows(call.keeping(keep, of=len(branches))(), len(branches), keep)
