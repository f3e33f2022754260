"""`thg plan`: shows a plan, or what a profile would give."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from thg.cli.choice import read_plan
from thg.errors import PlanError, ProfileError
from thg.plans.fidelity import DEFAULT_ERROR, most_steps, within
from thg.plans.plan import MOST_STEPS, Plan
from thg.plans.planners import Planner, tapered
from thg.plans.presets import PRESETS, preset
from thg.plans.response import Response
from thg.plans.run import RunInfo
from thg.plots.charts import plot_profile
from thg.profiles.profile import SHIPPED as SHIPPED_PROFILES
from thg.profiles.profile import Profile

SHIPPED = sorted(path.parent.name for path in SHIPPED_PROFILES.glob("*/profile.json"))
SCHEDULER = (
    "(for a scheduler of first order with even steps; a pipeline's own may need other steps: thg generate --dry-run "
    "prints its plan)"
)
SWEEP = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)


def run(args: argparse.Namespace) -> int:
    if args.steps is not None and not 1 <= args.steps <= MOST_STEPS:
        raise PlanError(f"--steps must be at least 1 and at most {MOST_STEPS}, not {args.steps}")
    if args.guidance_scale is not None and args.guidance_scale <= 1:
        raise PlanError(f"--guidance-scale must be above 1, not {args.guidance_scale:g}: there is nothing to skip at 1")
    profile = _profile(args.what)
    _refuse_idle_options(args, profile)
    _refuse_conflicts(args, profile)
    if args.sweep:
        assert profile is not None
        _sweep(profile, args)
        return 0
    plan = _plan(args, profile)
    if args.json:
        print(plan.to_json())
    else:
        fixed = profile is None and args.what is not None
        print("\n".join(_shown(plan, profile) + ([] if fixed else [SCHEDULER])))
    if args.plot is not None:
        assert profile is not None
        plot_profile(profile, plan, args.plot)
    return 0


def _refuse_idle_options(args: argparse.Namespace, profile: Profile | None) -> None:
    """An option without effect is an error: the user expects another plan than the one printed."""
    needs_profile = {"sweep", "plot", "rho", "method", "cutoff", "boost"}
    if args.sweep and profile is not None:
        idle = {"error", "nfe", "method", "hare_order", "corrector", "json", "plot"}
        why = "--sweep shows the grids over rho"
    elif profile is not None:
        idle, why = set(), ""
    elif args.what is None:
        idle, why = needs_profile, "it needs a profile (make one: thg calibrate --out profile.json)"
    else:
        idle = {"steps", "guidance_scale", "error", "nfe", "hare_order", "corrector", *needs_profile}
        why = f"{args.what} is a plan, which is shown unchanged"
    if refused := [f"--{name.replace('_', '-')}" for name in _given(args) if name in idle]:
        raise PlanError(f"{refused[0]} has no effect here: {why}")


def _given(args: argparse.Namespace) -> list[str]:
    return [name for name, value in vars(args).items() if value is not None and value is not False]


def _refuse_conflicts(args: argparse.Namespace, profile: Profile | None) -> None:
    """Options that contradict each other, or that need another one."""
    if len({"error", "nfe", "rho"} & set(_given(args))) > 1:
        raise PlanError("--error, --nfe and --rho all say how many evaluations to spend: write one of them")
    chooses_steps = profile is None and args.steps is None and isinstance(_budget(args.nfe), int)
    if args.nfe is not None and args.guidance_scale is not None and not chooses_steps:
        raise PlanError("--guidance-scale has no effect here: the grid of a budget is the same for all scales")
    paper = [name for name in _given(args) if name in ("cutoff", "boost")]
    paper += ["method algorithm2"] if args.method == "algorithm2" else []
    if profile is not None and paper and not args.sweep and args.nfe is None and args.rho is None:
        raise PlanError(f"--{paper[0]} belongs to the paper's planner: write --rho 1.1 or --nfe 0.7 with it")


def _shown(plan: Plan, profile: Profile | None) -> list[str]:
    lines = [f"num_inference_steps={plan.steps}"] if profile is None else [repr(profile)]
    settings = f"hare order {plan.hare_order}, boost {plan.boost:g}, corrector {plan.corrector:g}"
    runs = "everything runs" if plan.skips == "network" else "both branches run"
    evaluated = f"{runs} at {', '.join(map(str, _evaluated(plan)))}"
    return [*lines, str(plan), settings, evaluated]


def _evaluated(plan: Plan) -> list[int]:
    return [i for i in plan.coarse if plan.evaluates(i)]


def _profile(what: str | None) -> Profile | None:
    if what is None or what in PRESETS:
        return None
    if what in SHIPPED:
        return Profile.load(SHIPPED_PROFILES / what / "profile.json")
    path = Path(what)
    if not path.is_file():
        raise ProfileError(
            f"{what!r} is neither a file, a shipped model ({', '.join(SHIPPED)}), nor a preset ({', '.join(PRESETS)})"
        )
    if '"thg-plan-' in path.read_text(encoding="utf-8", errors="replace")[:200]:
        return None
    return Profile.load(path)


def _plan(args: argparse.Namespace, profile: Profile | None) -> Plan:
    if profile is not None:
        chosen = (args.error, args.nfe, args.rho) != (None, None, None)
        planner = profile.planner(
            error=args.error if chosen else DEFAULT_ERROR,
            nfe=_budget(args.nfe),
            rho=args.rho,
            method=args.method,
            hare_order=args.hare_order,
            corrector=args.corrector,
            cutoff=args.cutoff,
            boost=1.0 if args.boost is None else args.boost,
        )
        return planner.plan(_run_of(profile, args))
    if args.what is None:
        plan = _without_profile(args).plan(plain_run(args.steps or _steps_of(args), args.guidance_scale))
        given = {"hare_order": args.hare_order, "corrector": args.corrector}
        return replace(plan, **{name: value for name, value in given.items() if value is not None})
    return preset(args.what) if args.what in PRESETS else read_plan(Path(args.what))


def plain_run(steps: int, guidance_scale: float | None) -> RunInfo:
    """A run with a first-order scheduler whose steps are even."""
    return replace(RunInfo.of(steps, guidance_scale), response=Response.one_step([1 / steps] * steps))


def _without_profile(args: argparse.Namespace) -> Planner:
    budget = _budget(args.nfe)
    if budget is None:
        return within(DEFAULT_ERROR if args.error is None else args.error)
    return tapered(budget)


def _steps_of(args: argparse.Namespace) -> int:
    """The number of steps for a number of evaluations, if the user has not set it."""
    budget = _budget(args.nfe)
    return most_steps(budget, lambda steps: plain_run(steps, args.guidance_scale)) if isinstance(budget, int) else 50


def _run_of(profile: Profile, args: argparse.Namespace) -> RunInfo:
    return plain_run(args.steps or profile.steps, args.guidance_scale or profile.about.guidance_scale)


def _budget(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise PlanError(f"--nfe must be a share such as 0.65 or a count such as 70, not {text!r}") from None


def _sweep(profile: Profile, args: argparse.Namespace) -> None:
    print(profile)
    print(f"{'rho':>5}  {'NFE':>4}  {'speed-up':>8}  evaluated at")
    for rho in sorted({*SWEEP, *([args.rho] if args.rho is not None else [])}):
        planner = profile.planner(rho=rho, cutoff=args.cutoff, boost=1.0 if args.boost is None else args.boost)
        plan = planner.plan(_run_of(profile, args))
        grid = " ".join(map(str, _evaluated(plan)))
        print(f"{rho:>5.2f}  {plan.nfe:>4}  {plan.speedup:>7.2f}x  {grid}")
