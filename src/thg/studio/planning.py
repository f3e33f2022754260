"""Makes the plan that a request asks for, with thg's planners; the page only draws the answer."""

from __future__ import annotations

import bisect
import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thg.errors import PlanError
from thg.plans.plan import PRESETS, Plan, preset
from thg.plans.planners import DEFAULT_NFE, Fixed, Planner, tapered
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import Tuned, within
from thg.profiles.planner import far_from
from thg.profiles.profile import Moments, Profile
from thg.studio.specs import CustomSpec, DefaultSpec, PaperSpec, PlanSpec, ProfileSpec, TunedSpec

START_SHARE = 0.65  # the share of CFG's evaluations with which the ratio of a profile starts


def make_plan(spec: PlanSpec, run: RunInfo, profile: Profile | None, tuned: Tuned | None) -> Plan:
    """The plan of a run."""
    if isinstance(spec, TunedSpec):
        if tuned is None:
            raise PlanError("This model has not been tuned with this scheduler: do that below, or choose another plan.")
        return tuned.plan(run)
    if isinstance(spec, PaperSpec):
        return _paper_plan(spec.preset, run)
    if isinstance(spec, CustomSpec):
        return _stretched(spec, run.steps)
    if isinstance(spec, DefaultSpec):
        return _default_plan(spec, run)
    if profile is None:
        raise PlanError("this studio has no profile of its model; start it with --profile, or choose another plan")
    return _profile_plan(spec, run, profile)


def _default_plan(spec: DefaultSpec, run: RunInfo) -> Plan:
    planner: Planner = within(spec.tolerance) if spec.nfe is None else tapered(spec.nfe)
    return replace(planner.plan(run), **spec.changes)


def _profile_plan(spec: ProfileSpec, run: RunInfo, profile: Profile) -> Plan:
    if spec.rho is not None:
        return profile.planner(rho=spec.rho).plan(run)
    elsewhere: Planner = within(spec.error) if spec.error is not None else tapered(spec.nfe or DEFAULT_NFE)
    near = profile.planner(nfe=spec.nfe, error=spec.error)
    return (elsewhere if far_from(profile, run) else near).plan(run)


def _paper_plan(name: str, run: RunInfo) -> Plan:
    plan = preset(name)
    try:
        return Fixed(plan).plan(run)
    except PlanError:
        raise PlanError(
            f"The paper’s plan {name} has {plan.steps} steps, and this run calls the network {run.steps} times: set "
            f"Steps to {plan.steps}, or choose another plan or scheduler."
        ) from None


def note(spec: PlanSpec, plan: Plan, run: RunInfo, profile: Profile | None, tuned: Tuned | None) -> str:
    """A note on the plan for the user, or an empty string."""
    notes = [f"{tuned}.".capitalize()] if isinstance(spec, TunedSpec) and tuned is not None else []
    if isinstance(spec, ProfileSpec) and profile is not None and (far := far_from(profile, run)):
        instead = "the plan is uncertain" if spec.rho is not None else "the plan is that of models without a profile"
        notes.append(f"Far from the profile's settings ({far}): {instead}.")
    if run.adds_noise and plan.skips == "network":
        notes.append("Everything is evaluated: the scheduler adds noise at every step, and noise cannot be predicted.")
    elif plan.corrector and run.response is None:
        notes.append(f"Without the corrector: {run.no_response}.")
    return " ".join(notes)


def _stretched(spec: CustomSpec, calls: int) -> Plan:
    """The grid, scaled to the length of the run."""
    drawn = Plan(**{**spec.model_dump(exclude={"kind", "of"}), "steps": spec.of, "coarse": tuple(spec.coarse)})
    if calls == drawn.steps:
        return drawn
    coarse = sorted({index * calls // drawn.steps for index in drawn.coarse})
    cutoff = max(1, round(drawn.end_of_guidance * calls / drawn.steps))
    return replace(drawn, steps=calls, coarse=tuple(coarse), cutoff=cutoff)


def as_python(spec: PlanSpec, plan: Plan) -> str:
    """The second argument of `thg.enable` that gives this plan."""
    if isinstance(spec, DefaultSpec) and not spec.changes:
        return f"thg.within({spec.tolerance:g})" if spec.nfe is None else f"thg.tapered({spec.nfe})"
    if isinstance(spec, PaperSpec):
        return repr(spec.preset)
    return f"thg.{plan!r}"


def for_page(spec: PlanSpec, plan: Plan) -> dict[str, Any]:
    """The data from which the page draws a plan."""
    return {
        "plan": json.loads(plan.to_json()),
        "skips": plan.skips,
        "evaluates": [plan.evaluates(i) for i in range(plan.steps)],
        "cutoff": plan.end_of_guidance,
        "calls": plan.steps,
        "nfe": plan.nfe,
        "cfg_nfe": plan.cfg_nfe,
        "speedup": round(plan.speedup, 4),
        "python": as_python(spec, plan),
        "error": _tolerance(spec),
    }


def _tolerance(spec: PlanSpec) -> float | None:
    """How far the plan's result may be from plain CFG's, if that is what it was made for."""
    if isinstance(spec, DefaultSpec):
        return None if spec.nfe is not None else spec.tolerance
    return spec.error if isinstance(spec, ProfileSpec) else None


def paper_presets() -> list[dict[str, Any]]:
    """The presets whose grid the paper prints."""
    return [
        {"name": p.name, "steps": p.steps, "guidance_scale": p.guidance_scale, "nfe": p.plan().nfe}
        for p in PRESETS.values()
        if p.coarse is not None
    ]


def first_rho(profile: Profile, run: RunInfo) -> float:
    """The smallest ratio on the slider, from 0.1 to 10, whose plan is within the default budget."""
    ratios = [10 ** (position / 100) for position in range(-100, 101)]

    def affordable(rho: float) -> bool:
        return profile.planner(rho=rho).plan(run).nfe <= START_SHARE * 2 * run.steps

    first = bisect.bisect_left(ratios, True, key=affordable)  # a larger ratio never costs more
    return ratios[min(first, len(ratios) - 1)]


def profile_for_page(profile: Profile) -> dict[str, Any]:
    """What the profile's charts show: means over samples for each step, and what they were measured on.

    The error bounds are the paper's: the error of the network's output at the midpoint, times the solver's coefficient,
    over 1 - 2^-p. The hare's do not include the factor w-1 of the run.
    """
    about, constants = profile.about, profile.algorithm3
    solver = profile.error_factors()
    return {
        "about": {
            "model": about.model or about.pipeline,
            "scheduler": about.scheduler,
            "steps": about.steps,
            "guidance_scale": about.guidance_scale,
            "samples": profile.samples,
            "date": about.date,
        },
        "bounds": {"tortoise": _spread(constants.tortoise, solver), "hare": _spread(constants.hare, solver)},
        "rates": {"tortoise": _spread(constants.tortoise_rate), "hare": _spread(constants.hare_rate)},
    }


def _spread(moments: Moments, factor: NDArray[np.float64] | float = 1.0) -> dict[str, list[float]]:
    return {"mean": (factor * moments.mean).tolist(), "std": (factor * moments.std).tolist()}
