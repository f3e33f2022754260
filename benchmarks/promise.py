"""Is a tolerance kept? `thg.within` and `thg.tune` on the networks of the zoo, each as a pipeline of diffusers.

    python -m benchmarks.promise curves --networks choosing    # errors against the number of evaluated steps
    python -m benchmarks.promise prove --networks kept-out     # before and after thg.tune, at three tolerances
    python -m benchmarks.promise table --networks kept-out     # what `prove` has found so far
    python -m benchmarks.promise calibrate --networks kept-out # grids of thg.calibrate against the default's

A cell is a network, a scheduler of first or second order, a number of steps and a tolerance. `thg.tune` sees 16
samples; the shares are of 48 others. Every finished cell is a line of FOLDER/promise-*.jsonl, and is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import thg
from benchmarks import zoo
from benchmarks.prior import FIRST_ORDER, GROUPS, SECOND_ORDER, Cell, cells, described
from thg.plans.tolerance import network_plan, within
from thg.processes import generators

Array = NDArray[np.float64]
TUNING, TESTING = 0, 1  # seeds
TUNED, CALIBRATED, TESTED = 16, 5, 48  # samples
TOLERANCES = (0.003, 0.01, 0.03)


class Zoo(diffusers.DiffusionPipeline):  # type: ignore[misc]
    """A network of the zoo and a scheduler."""

    shape: tuple[int, ...]  # of a sample

    def __init__(self, network: nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(network=network, scheduler=scheduler)
        self.set_progress_bar_config(disable=True)

    @torch.no_grad()
    def __call__(
        self,
        class_labels: list[int],
        num_inference_steps: int = 50,
        guidance_scale: float = 4.0,
        generator: list[torch.Generator] | None = None,
    ) -> tuple[Tensor]:
        scheduler, labels = self.scheduler, torch.tensor(class_labels)
        assert generator is not None
        x = torch.stack([torch.randn(self.shape, generator=one) for one in generator])
        scheduler.set_timesteps(num_inference_steps)
        x = x * float(getattr(scheduler, "init_noise_sigma", 1.0))
        both = torch.cat([labels, torch.full_like(labels, zoo.NOBODY)])
        for time_step in scheduler.timesteps:
            given = scheduler.scale_model_input(x, time_step) if hasattr(scheduler, "scale_model_input") else x
            rows = torch.cat([given, given])
            e_c, e_u = self.network(rows, time_step.expand(len(rows)), both).chunk(2)
            x = scheduler.step(e_u + guidance_scale * (e_c - e_u), time_step, x, return_dict=False)[0]
        return (x,)


def pipeline(cell: Cell, folder: Path) -> Zoo:
    pipe = Zoo(zoo.network(cell.network, folder / "weights"), cell.made())
    pipe.shape = cell.kind.shape
    return pipe


def labels(count: int) -> list[int]:
    return [i % zoo.CLASSES for i in range(count)]


def final(pipe: Zoo, cell: Cell, plan: Any, seed: int, count: int) -> tuple[Tensor, thg.Summary | None]:
    """Final states; plan=False is the plain run."""
    call: dict[str, Any] = {"num_inference_steps": cell.steps, "guidance_scale": cell.guidance}
    call["generator"] = generators(seed, range(count))
    if plan is False:
        return pipe(labels(count), **call)[0], None
    with thg.enabled(pipe, plan):
        return pipe(labels(count), **call)[0], thg.summary(pipe)


def relative(x: Tensor, plain: Tensor) -> list[float]:
    errors = (x - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)
    return [float(f"{error:.4g}") for error in errors.tolist()]


# -- lines


@dataclass(frozen=True)
class Lines:
    """Finished cells, a line each."""

    path: Path

    def done(self) -> dict[str, dict[str, Any]]:
        if not self.path.exists():
            return {}
        return {row["cell"]: row for row in map(json.loads, self.path.read_text().splitlines())}

    def add(self, row: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


@dataclass(frozen=True)
class Count:
    """A planner that evaluates a number of steps."""

    count: int
    skips = "network"

    def plan(self, run: thg.Run) -> thg.Plan:
        return network_plan(run, self.count)


def curves(folder: Path, chosen: Sequence[Cell], lines: Lines) -> Iterator[str]:
    """Errors and estimates of the samples for tuning and for testing, against the number of evaluated steps."""
    done = lines.done()
    for cell in chosen:
        if str(cell) in done:
            continue
        pipe = pipeline(cell, folder)
        plain = [final(pipe, cell, False, seed, count)[0] for seed, count in ((TUNING, TUNED), (TESTING, TESTED))]
        found: dict[int, Any] = {}
        for count in sorted({round(6 * 1.12**k) for k in range(26)}):
            if count >= cell.steps:
                break
            rows = []
            for seed, size, truth in zip((TUNING, TESTING), (TUNED, TESTED), plain, strict=True):
                x, report = final(pipe, cell, Count(count), seed, size)
                assert report is not None
                rows += [relative(x, truth), [float(f"{e:.4g}") for e in report.estimated_error or ()]]
            found[count] = rows
            if max(rows[0] + rows[2]) < TOLERANCES[0] / 3:
                break
        lines.add({"cell": str(cell), "counts": found})
        yield str(cell)


def prove(folder: Path, chosen: Sequence[Cell], lines: Lines) -> Iterator[str]:
    """The tolerance before and after `thg.tune`."""
    done = lines.done()
    for cell in chosen:
        if all(f"{cell} | {error:g}" in done for error in TOLERANCES):
            continue
        pipe = pipeline(cell, folder)
        plain = final(pipe, cell, False, TESTING, TESTED)[0]
        for error in TOLERANCES:
            name = f"{cell} | {error:g}"
            if name in done:
                continue
            tuned = thg.tune(
                pipe,
                labels(TUNED),
                error,
                steps=cell.steps,
                guidance_scale=cell.guidance,
                batch_size=TUNED,
                seed=TUNING,
                remember=False,
                progress=False,
            )
            row: dict[str, Any] = {"cell": name, "tuned": str(tuned), "effort": tuned.effort, "reached": tuned.reached}
            row["shape"] = tuned.shape
            for moment, plan in (("before", thg.within(error)), ("after", tuned)):
                x, report = final(pipe, cell, plan, TESTING, TESTED)
                assert report is not None
                row[moment] = {
                    "nfe": report.nfe,
                    "errors": relative(x, plain),
                    "estimates": [float(f"{e:.4g}") for e in report.estimated_error or ()],
                }
            lines.add(row)
            yield name


def calibrated(folder: Path, chosen: Sequence[Cell], lines: Lines) -> Iterator[str]:
    """Five samples are calibrated; the profile's grid and the default's, with as many evaluations, on the others.

    Also the 95 % quantile of the errors over the predicted root mean square, and the tolerance of 1 %.
    """
    done = lines.done()
    for cell in chosen:
        if str(cell) in done:
            continue
        pipe = pipeline(cell, folder)
        plain, _ = final(pipe, cell, False, TESTING, TESTED)
        profile = thg.calibrate(
            pipe,
            labels(CALIBRATED),
            steps=cell.steps,
            guidance_scale=cell.guidance,
            batch_size=CALIBRATED,
            seed=TUNING,
            progress=False,
        )
        row: dict[str, Any] = {"cell": str(cell), "survival": profile.survival.tolist()}  # type: ignore[union-attr]
        count = within(0.01).plan(described(cell)).evaluations
        for name, plan in (
            ("default", Count(count)),
            ("profile", profile.planner(nfe=2 * count)),
            ("fewer", Count(round(0.8 * count))),
            ("fewer, profile", profile.planner(nfe=2 * round(0.8 * count))),
            ("1 %", profile.planner(error=0.01)),
        ):
            x, report = final(pipe, cell, plan, TESTING, TESTED)
            assert report is not None
            row[name] = {"nfe": report.nfe, "errors": relative(x, plain)}
        lines.add(row)
        yield f"{cell}: " + ", ".join(f"{name} {_decibels(row[name])}" for name in list(row)[2:])


def _decibels(found: dict[str, Any]) -> str:
    decibels = -20 * np.log10(np.maximum(found["errors"], 1e-9))
    return f"{found['nfe']}: {decibels.mean():.1f} / {np.quantile(decibels, 0.05):.1f}"


# -- the table


def shares(row: dict[str, Any], moment: str) -> tuple[float, float, float]:
    """Within the tolerance; the estimate right within a factor of two (of the leaping samples); the evaluations."""
    error = float(row["cell"].rpartition(" | ")[2])
    found = row[moment]
    errors, estimates = np.array(found["errors"]), np.array(found["estimates"])
    kept = float((errors <= error).mean())
    if len(estimates) != len(errors):
        return kept, np.nan, found["nfe"]
    return kept, float((np.abs(np.log2(np.maximum(errors, 1e-9) / estimates)) <= 1).mean()), found["nfe"]


def table(rows: Sequence[dict[str, Any]]) -> None:
    print("| network | tolerance | kept before | evaluations | estimate | kept after | evaluations | estimate |")
    print("|---|---|---|---|---|---|---|---|")
    parts = [row["cell"].split(" | ") for row in rows]
    for network in dict.fromkeys(part[0] for part in parts):
        for error in TOLERANCES:
            own = [r for r, p in zip(rows, parts, strict=True) if p[0] == network and float(p[-1]) == error]
            print(f"| {network} | {error:.1%} | " + " | ".join(_columns(own, m) for m in ("before", "after")) + " |")
    for moment in ("before", "after"):
        kept, right, _ = np.array([shares(row, moment) for row in rows]).T
        right = right[~np.isnan(right)]
        print(
            f"\n{moment}: {len(rows)} cells; 95 % within the tolerance in {np.mean(kept >= 0.95):.0%} of them, 90 % in "
            f"{np.mean(kept >= 0.9):.0%}, least {kept.min():.0%}, mean {kept.mean():.1%}; the estimate is right within "
            f"a factor of two for {right.mean():.0%} of samples"
        )


def _columns(rows: Sequence[dict[str, Any]], moment: str) -> str:
    """Over the cells of a network and a tolerance: the mean and least share kept, the evaluations, the estimate."""
    kept, right, nfe = np.array([shares(row, moment) for row in rows]).T
    steps = np.array([float(row["cell"].split(" | ")[2]) for row in rows])
    share = f"{np.mean(nfe / (2 * steps)):.0%}"
    known = right[~np.isnan(right)]  # where anything was predicted
    estimate = f"{known.mean():.0%}" if len(known) else "–"
    return f"{kept.mean():.0%} (least {kept.min():.0%}) | {share} | {estimate}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("curves", "prove", "table", "calibrate"))
    parser.add_argument("--networks", choices=tuple(GROUPS), default="kept-out")
    parser.add_argument("--only", nargs="+", default=[""], help="networks with one of these words, in this order")
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 28, 50, 100])
    parser.add_argument("--out", type=Path, default=Path("results/zoo"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    diffusers.utils.logging.set_verbosity_error()
    group = GROUPS[options.networks]
    networks = list(dict.fromkeys(name for word in options.only for name in group if word in name))
    chosen = cells(networks, options.steps, [*FIRST_ORDER, *SECOND_ORDER], 0.0)
    kind = "prove" if options.what == "table" else options.what
    lines = Lines(options.out / f"promise-{kind}-{options.networks}.jsonl")
    if options.what == "table":
        table(list(lines.done().values()))
        return
    started = time.monotonic()
    work = {"curves": curves, "prove": prove, "calibrate": calibrated}[options.what]
    for name in work(options.out, chosen, lines):
        print(f"{time.monotonic() - started:.0f} s: {name}", flush=True)


if __name__ == "__main__":
    main()
