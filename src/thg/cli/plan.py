"""`thg plan`: shows a plan, or what a profile would give. Also the option --plan of other commands."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from thg.cli.parser import tolerance
from thg.errors import PlanError, ProfileError
from thg.plans.plan import MOST_STEPS, PRESETS, Plan, preset
from thg.plans.planners import Choice, Planner, tapered
from thg.plans.response import Response
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import DEFAULT_ERROR, most_steps, within
from thg.plots.charts import plot_profile
from thg.profiles.profile import Profile, shipped_profiles

SCHEDULER = (
    "(for a scheduler of first order with even steps; a pipeline's own may need other steps: thg generate --dry-run "
    "prints its plan)"
)
SWEEP = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)


def run(args: argparse.Namespace) -> int:
    given = None if args.what is None else _given_plan(args.what)
    profile = given if isinstance(given, Profile) else None
    _refuse(args, profile)
    if args.sweep and profile is not None:
        _sweep(profile, args)
        return 0
    if isinstance(given, Plan):
        plan = given
    else:
        plan = _default_plan(args) if profile is None else _profile_plan(args, profile)
    if args.json:
        print(plan.to_json())
    else:
        print(profile if profile is not None else f"num_inference_steps={plan.steps}")
        print(plan)
        print(_details(plan))
        if given is not plan:
            print(SCHEDULER)
    if args.plot is not None and profile is not None:
        plot_profile(profile, plan, args.plot)
    return 0


def _given_plan(what: str) -> Plan | Profile:
    if what in PRESETS:
        return preset(what)
    shipped = shipped_profiles()
    path = shipped.get(what, Path(what))
    if not path.is_file():
        raise ProfileError(
            f"{what!r} is neither a file, a shipped profile ({', '.join(shipped)}), nor a preset "
            f"({', '.join(PRESETS)}); thg plan alone shows the default, for any model"
        )
    return _read(path)


def _read(path: Path) -> Plan | Profile:
    """What a file has; errors name the file."""
    try:
        text = path.read_text(encoding="utf-8")
        return Profile.load(path) if "thg-profile-" in text else Plan.from_json(text)
    except UnicodeDecodeError:
        raise PlanError(f"{path} is neither a plan nor a profile: it is not a text file") from None
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def _details(plan: Plan) -> str:
    """When and how a plan predicts, in words; the paper's words for the paper's kind of plan."""
    steps = ", ".join(map(str, _evaluated(plan)))
    if len(_evaluated(plan)) == plan.steps:
        return "everything is evaluated: the plan leaves out no step"
    if plan.skips == "network":
        source = "a line through the last two outputs" if plan.hare_order == 2 else "the last output"
        return f"the network runs at steps {steps}\nelsewhere {source} predicts it, corrector {plan.corrector:g}"
    return (
        f"hare order {plan.hare_order}, boost {plan.boost:g}, corrector {plan.corrector:g}\n"
        f"both branches run at steps {steps}"
    )


# -- options


def _refuse(args: argparse.Namespace, profile: Profile | None) -> None:
    """Refuses values out of range, options that contradict each other, and options without an effect: whoever writes
    one expects another plan than the one printed."""
    given = [name for name, value in vars(args).items() if value is not None and value is not False]
    if args.steps is not None and not 1 <= args.steps <= MOST_STEPS:
        raise PlanError(f"--steps must be at least 1 and at most {MOST_STEPS}, not {args.steps}")
    if args.guidance_scale is not None and args.guidance_scale <= 1:
        raise PlanError(f"--guidance-scale must be above 1, not {args.guidance_scale:g}: there is nothing to skip at 1")
    idle, why = _idle_options(args, profile)
    if refused := [name for name in given if name in idle]:
        raise PlanError(f"--{refused[0].replace('_', '-')} has no effect here: {why}")
    if len({"error", "nfe", "rho"} & set(given)) > 1:
        raise PlanError("--error, --nfe and --rho all say how many evaluations to spend: write one of them")
    chooses_steps = profile is None and args.steps is None and isinstance(_nfe(args), int)
    if args.nfe is not None and args.guidance_scale is not None and not chooses_steps:
        raise PlanError("--guidance-scale has no effect here: the grid of a budget is the same for all scales")
    paper = [name for name in given if name in ("cutoff", "boost")]
    paper += ["method algorithm2"] if args.method == "algorithm2" else []
    if profile is not None and paper and not args.sweep and args.nfe is None and args.rho is None:
        raise PlanError(f"--{paper[0]} belongs to the paper's planner: write --rho 1.1 or --nfe 0.7 with it")


def _idle_options(args: argparse.Namespace, profile: Profile | None) -> tuple[set[str], str]:
    needs_profile = {"sweep", "plot", "rho", "method", "cutoff", "boost"}
    if profile is None and args.what is None:
        return needs_profile, "it needs a profile (make one: thg calibrate --out profile.json)"
    if profile is None:
        others = {"steps", "guidance_scale", "error", "nfe", "hare_order", "corrector"}
        return needs_profile | others, f"{args.what} is a plan, which is shown unchanged"
    idle = {"error", "nfe", "method", "hare_order", "corrector", "json", "plot"} if args.sweep else set()
    return idle, "--sweep shows the grids over rho"


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
        try:
            return tapered(budget)
        except PlanError:
            raise PlanError(
                f"--plan {text}: a budget is a share of plain CFG's evaluations, above 0 and up to 1.0, such as 0.65, "
                "or a count of at least 2, such as 70"
            ) from None
    if not Path(text).is_file():
        raise PlanError(
            f"--plan {text!r} is not default, cfg, a tolerance such as 1%, a preset ({', '.join(sorted(PRESETS))}), "
            "a share such as 0.65, a number such as 70, or an existing file"
        )
    found = _read(Path(text))
    return found.planner(error=DEFAULT_ERROR) if isinstance(found, Profile) else found


# -- plans


def plain_run(steps: int, guidance_scale: float | None) -> RunInfo:
    """A run with a first-order scheduler whose steps are even."""
    return replace(RunInfo.of(steps, guidance_scale), response=Response.one_step([1 / steps] * steps))


def _default_plan(args: argparse.Namespace) -> Plan:
    nfe, steps = _nfe(args), args.steps or 50
    if args.steps is None and isinstance(nfe, int):
        steps = most_steps(nfe, lambda steps: plain_run(steps, args.guidance_scale))
    planner: Planner = within(args.error or DEFAULT_ERROR) if nfe is None else tapered(nfe)
    return replace(planner.plan(plain_run(steps, args.guidance_scale)), **_given(args, "hare_order", "corrector"))


def _profile_plan(args: argparse.Namespace, profile: Profile) -> Plan:
    sized = (args.error, args.nfe, args.rho) != (None, None, None)
    options = _given(args, "rho", "method", "hare_order", "corrector", "cutoff", "boost")
    planner = profile.planner(error=args.error if sized else DEFAULT_ERROR, nfe=_nfe(args), **options)
    return planner.plan(_run_of(profile, args))


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _run_of(profile: Profile, args: argparse.Namespace) -> RunInfo:
    return plain_run(args.steps or profile.steps, args.guidance_scale or profile.about.guidance_scale)


def _evaluated(plan: Plan) -> list[int]:
    return [i for i in plan.coarse if plan.evaluates(i)]


def _sweep(profile: Profile, args: argparse.Namespace) -> None:
    print(profile)
    print(f"{'rho':>5}  evaluations  {'speed-up':>8}  evaluated at")
    for rho in sorted({*SWEEP, *([args.rho] if args.rho is not None else [])}):
        plan = profile.planner(rho=rho, **_given(args, "cutoff", "boost")).plan(_run_of(profile, args))
        print(f"{rho:>5.2f}  {plan.nfe:>11}  {plan.speedup:>7.2f}x  {' '.join(map(str, _evaluated(plan)))}")
