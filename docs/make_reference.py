"""Writes docs/api.md from the docstrings, and the files that docs/extending.md shows into it.

    python docs/make_reference.py

Both are plain Markdown, so that they can be read on a code host, too. A test checks that they are current.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
INTRODUCTION = """# API reference

Written by `docs/make_reference.py` from the docstrings. Names directly below `thg` are public; the subpackages are for
[extending](extending.md) thg and for using its core without diffusers.
"""
ITEM = re.compile(r"^ *(?:- )?(`?[A-Za-z_]\w*`?(?:, `?[A-Za-z_]\w*`?)*): (.*)$")
INCLUDED = re.compile(r"(<!-- from (\S+) -->\n```python\n).*?(```\n)", re.DOTALL)
WIDTH = 88

SECTIONS = {
    "On a pipeline": """
        thg.enable thg.enabled thg.disable thg.is_enabled thg.supported thg.preview thg.summary thg.Summary
        thg.Batched thg.Sequential thg.TortoiseHareGuidance thg.shipped_pipeline
    """,
    "Plans and planners": """
        thg.Plan thg.within thg.plan_for thg.tapered thg.uniform thg.preset thg.plans.PRESETS thg.plans.Preset
        thg.plans.m_max thg.plans.look_before_you_leap thg.plans.rho_for thg.plans.RunInfo
    """,
    "Calibration": """
        thg.tune thg.plans.Tuned thg.calibrate thg.Profile thg.ode.error_constants
        thg.ode.error_constants_first_order
        thg.ode.ErrorConstants thg.profiles.optimal_grid
    """,
    "The core, without diffusers": """
        thg.sample thg.ode.Sampled thg.ode.Step thg.GuidedDenoiser thg.Schedule thg.read_schedule thg.ode.Node
        thg.ode.express thg.ode.Denoiser thg.ode.solvers.Solver thg.ode.solvers.LinearMultistep
        thg.ode.solvers.DPMSolver2 thg.ode.solvers.ddim thg.ode.solvers.euler thg.ode.solvers.lms
        thg.ode.solvers.plms thg.ode.solvers.dpm_multistep thg.ode.solvers.dpm_singlestep thg.ode.solvers.Track
        thg.ode.solvers.observe thg.ode.solvers.advance thg.ode.solvers.step thg.plans.leaps.prediction_weights
        thg.plans.leaps.predicted thg.ode.GaussianMixture
    """,
    "Guides and policies": """
        thg.plans.Leaps thg.plans.Guide thg.plans.GuideMaker thg.plans.HareGuide thg.plans.Planner
    """,
    "Metrics": """
        thg.bench.metrics.Batch thg.bench.metrics.Metric thg.bench.metrics.MeanMetric
        thg.bench.metrics.SetMetric thg.bench.metrics.load_metrics
    """,
    "Errors": """
        thg.THGError thg.PlanError thg.errors.ScheduleError thg.errors.NonFiniteError thg.UnsupportedPipelineError
        thg.errors.ConcurrentRunError thg.errors.ProfileError thg.errors.MissingExtraError
    """,
}


def reference() -> str:
    """The text of docs/api.md."""
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names.split():
            parts += _entry(name)
    return "\n".join(parts)


def extending(text: str) -> str:
    """docs/extending.md with the present contents of the files that it shows."""

    def filled(found: re.Match[str]) -> str:
        return found[1] + (HERE.parent / found[2]).read_text(encoding="utf-8") + found[3]

    return INCLUDED.sub(filled, text)


def _entry(name: str) -> Iterator[str]:
    module, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(module), last)
    yield f'<a id="{name}"></a>\n\n### {name}\n'
    if isinstance(value, Mapping):
        yield f"{', '.join(f'`{key}`' for key in value)}.\n"
        return
    if not getattr(value, "_is_protocol", False):
        yield _call(name, value)
    yield _documented(value)
    if inspect.isclass(value):
        for member, held in vars(value).items():
            if not member.startswith("_") and _documented(_function(held)):
                yield from _member(f"{name}.{member}", held)


def _member(name: str, held: Any) -> Iterator[str]:
    yield f'<a id="{name}"></a>\n\n#### {name}\n'
    if not isinstance(held, property):
        yield _call(name, _function(held), method=not isinstance(held, staticmethod))
    yield _documented(_function(held))


def _function(held: Any) -> Any:
    """What is behind a property, a class method or a static method; None for a plain value."""
    if isinstance(held, property):
        return held.fget
    held = getattr(held, "__func__", getattr(held, "func", held))
    return held if callable(held) else None


def _documented(value: Any) -> str:
    text = inspect.getdoc(value) if value is not None and value.__doc__ else None
    generated = text and inspect.isclass(value) and text.startswith(f"{value.__name__}(")
    return f"{as_markdown(text)}\n" if text and not generated else ""


def _call(name: str, value: Any, method: bool = False) -> str:
    """The signature, in one line, or with a line for each parameter."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # an exception without a constructor of its own
        return ""
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    if inspect.isclass(value) and issubclass(value, BaseException):
        return ""
    shown = re.sub(r"'([^']*)'(?=[,)= ]|$)", r"\1", str(signature.replace(parameters=parameters)))
    if len(name) + len(shown) > WIDTH and parameters:
        arguments = [re.sub(r": '([^']*)'", r": \1", str(parameter)) for parameter in parameters]
        kinds = [parameter.kind for parameter in parameters]
        if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
            arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
        end = shown[shown.rindex(")") :]
        shown = "(\n" + "".join(f"    {argument},\n" for argument in arguments) + end
    return f"```python\n{name}{shown}\n```\n"


def as_markdown(text: str) -> str:
    """The docstring with its `name: ...` lines as list items; everything else is unchanged."""
    lines: list[str] = []
    indent: int | None = None  # of the items of the current list
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        item = ITEM.match(line)
        if item and (indent is None or depth == indent):
            if indent is None and lines and lines[-1]:
                lines.append("")
            indent = depth
            names = ", ".join(f"`{name.strip('` ')}`" for name in item[1].split(","))
            lines.append(f"- {names}: {item[2]}")
        elif indent is not None and line.strip() and depth > indent:
            lines.append(f"  {line.strip()}")
        else:
            if indent is not None and line.strip():
                lines.append("")
            indent = None
            lines.append(line)
    return "\n".join(lines)


def main() -> None:
    (HERE / "api.md").write_text(reference(), encoding="utf-8")
    page = HERE / "extending.md"
    page.write_text(extending(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
