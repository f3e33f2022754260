"""`thg plan`: shows a plan, or what a profile would give. Also the option --plan of other commands."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from thg.cli.parser import tolerance
from thg.errors import PlanError, ProfileError
from thg.plans.plan import MOST_STEPS, PRESETS, Plan, preset
from thg.plans.planners import Choice, Planner, tapered
from thg.plans.run import Response, RunInfo
from thg.plans.tolerance import DEFAULT_ERROR, most_steps, within
from thg.plots.charts import plot_profile
from thg.profiles.profile import FORMAT as PROFILE_FORMAT
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


# -- options


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
    chooses_steps = profile is None and args.steps is None and isinstance(_nfe(args), int)
    if args.nfe is not None and args.guidance_scale is not None and not chooses_steps:
        raise PlanError("--guidance-scale has no effect here: the grid of a budget is the same for all scales")
    paper = [name for name in _given(args) if name in ("cutoff", "boost")]
    paper += ["method algorithm2"] if args.method == "algorithm2" else []
    if profile is not None and paper and not args.sweep and args.nfe is None and args.rho is None:
        raise PlanError(f"--{paper[0]} belongs to the paper's planner: write --rho 1.1 or --nfe 0.7 with it")


def _budget(text: str) -> float | None:
    """A share of CFG's evaluations such as 0.65, or a number of them such as 70."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return None


def _nfe(args: argparse.Namespace) -> float | None:
    budget = None if args.nfe is None else _budget(args.nfe)
    if args.nfe is not None and budget is None:
        raise PlanError(f"--nfe must be a share such as 0.65 or a count such as 70, not {args.nfe!r}")
    return budget


# -- the plan


def _plan(args: argparse.Namespace, profile: Profile | None) -> Plan:
    nfe = _nfe(args)
    if profile is not None:
        sized = (args.error, args.nfe, args.rho) != (None, None, None)
        planner = profile.planner(
            error=args.error if sized else DEFAULT_ERROR,
            nfe=nfe,
            rho=args.rho,
            method=args.method,
            hare_order=args.hare_order,
            corrector=args.corrector,
            cutoff=args.cutoff,
            boost=_boost(args),
        )
        return planner.plan(_run_of(profile, args))
    if args.what is not None:
        return preset(args.what) if args.what in PRESETS else _read_plan(Path(args.what))
    steps = args.steps or 50
    if args.steps is None and isinstance(nfe, int):
        steps = most_steps(nfe, lambda steps: plain_run(steps, args.guidance_scale))
    chosen: Planner = within(args.error or DEFAULT_ERROR) if nfe is None else tapered(nfe)
    given = {"hare_order": args.hare_order, "corrector": args.corrector}
    plan = chosen.plan(plain_run(steps, args.guidance_scale))
    return replace(plan, **{name: value for name, value in given.items() if value is not None})


def plain_run(steps: int, guidance_scale: float | None) -> RunInfo:
    """A run with a first-order scheduler whose steps are even."""
    return replace(RunInfo.of(steps, guidance_scale), response=Response.one_step([1 / steps] * steps))


def _run_of(profile: Profile, args: argparse.Namespace) -> RunInfo:
    return plain_run(args.steps or profile.steps, args.guidance_scale or profile.about.guidance_scale)


def _boost(args: argparse.Namespace) -> float:
    return 1.0 if args.boost is None else float(args.boost)


def _shown(plan: Plan, profile: Profile | None) -> list[str]:
    lines = [f"num_inference_steps={plan.steps}"] if profile is None else [repr(profile)]
    settings = f"hare order {plan.hare_order}, boost {plan.boost:g}, corrector {plan.corrector:g}"
    runs = "everything runs" if plan.skips == "network" else "both branches run"
    return [*lines, str(plan), settings, f"{runs} at {', '.join(map(str, _evaluated(plan)))}"]


def _evaluated(plan: Plan) -> list[int]:
    return [i for i in plan.coarse if plan.evaluates(i)]


def _sweep(profile: Profile, args: argparse.Namespace) -> None:
    print(profile)
    print(f"{'rho':>5}  evaluations  {'speed-up':>8}  evaluated at")
    for rho in sorted({*SWEEP, *([args.rho] if args.rho is not None else [])}):
        plan = profile.planner(rho=rho, cutoff=args.cutoff, boost=_boost(args)).plan(_run_of(profile, args))
        print(f"{rho:>5.2f}  {plan.nfe:>11}  {plan.speedup:>7.2f}x  {' '.join(map(str, _evaluated(plan)))}")


# -- files, and the option --plan


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


def chosen_plan(text: str) -> Choice | bool:
    """The value of `--plan`: False is plain CFG, True the default."""
    if text in ("default", "cfg"):
        return text == "default"
    if text in PRESETS:
        return preset(text)
    if text.endswith("%"):
        try:
            return within(tolerance(text))
        except argparse.ArgumentTypeError:
            raise PlanError(f"--plan {text}: a tolerance lies above 0% and below 100%, such as 1%") from None
    if (budget := _budget(text)) is not None:
        return tapered(budget)
    path = Path(text)
    if not path.is_file():
        raise PlanError(
            f"--plan {text!r} is not default, cfg, a tolerance such as 1%, a preset ({', '.join(sorted(PRESETS))}), "
            "a share such as 0.65, a number such as 70, or an existing file"
        )
    if PROFILE_FORMAT in _read_text(path):
        return Profile.load(path).planner(error=DEFAULT_ERROR)
    return _read_plan(path)


def _read_plan(path: Path) -> Plan:
    """The plan in a file, with an error that names the file."""
    try:
        return Plan.from_json(_read_text(path))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PlanError(f"{path} is neither a plan nor a profile: it is not a text file") from None
