"""The --plan option."""

from __future__ import annotations

import argparse
from pathlib import Path

from thg.cli.parser import tolerance
from thg.errors import PlanError
from thg.plans.fidelity import DEFAULT_ERROR, within
from thg.plans.plan import Plan
from thg.plans.planners import Choice, tapered
from thg.plans.presets import PRESETS, preset
from thg.profiles.profile import FORMAT as PROFILE_FORMAT
from thg.profiles.profile import Profile


def chosen_plan(text: str) -> Choice | bool:
    """The value of `--plan`: False is plain CFG, True the default."""
    if text == "default":
        return True
    if text == "cfg":
        return False
    if text in PRESETS:
        return preset(text)
    if text.endswith("%"):
        try:
            return within(tolerance(text))
        except argparse.ArgumentTypeError:
            raise PlanError(f"--plan {text}: a tolerance lies above 0% and below 100%, such as 1%") from None
    budget = _number(text)
    if budget is not None:
        return tapered(budget)
    path = Path(text)
    if not path.is_file():
        raise PlanError(
            f"--plan {text!r} is not default, cfg, a tolerance such as 1%, a preset ({', '.join(sorted(PRESETS))}), "
            "a share such as 0.65, a number such as 70, or an existing file"
        )
    return _from_file(path)


def _number(text: str) -> float | None:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return None


def _from_file(path: Path) -> Choice:
    """The plan in the file, or the planner of a profile for the default tolerance."""
    if PROFILE_FORMAT in _read_text(path):
        return Profile.load(path).planner(error=DEFAULT_ERROR)
    return read_plan(path)


def read_plan(path: Path) -> Plan:
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
