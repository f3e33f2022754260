"""Measures leaps of the whole network on the zoo: plain runs, leaping runs with the same seeds, and their difference.

    python -m benchmarks.prior default --networks kept-out --out FOLDER    # in the root of the repository
    python -m benchmarks.prior compare --steps 28 50                       # the prior, and neighbours of its numbers
    python -m benchmarks.prior law --steps 50 100                          # error against the number of evaluations
    python -m benchmarks.prior leaps --steps 20 28 50                      # what a single leap costs
    python -m benchmarks.prior converged --counts 12 15 20 25 30           # many steps that leap, or fewer plain ones

A cell is a network of `benchmarks.zoo`, a scheduler of diffusers, a number of steps and a guidance scale. Its quality
is the relative difference of the final states from those of the plain run, in dB (40 dB is 1 %): the mean and the worst
5 % of 48 samples. Final states of plain runs are kept in the folder.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import Tensor, nn

from benchmarks import zoo
from thg.files import write_atomically
from thg.pipelines.describe import describe
from thg.plans.leaps import Estimate, Leaps
from thg.plans.plan import Plan
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import FREE_STEPS, LONGEST_RUN, PRIOR, network_plan, within

Array = NDArray[np.float64]
SAMPLES = 48
ENOUGH = 55.0  # dB
CONVERGED = 400  # steps


def schedulers(kind: zoo.Member) -> dict[str, Callable[[], Any]]:
    """diffusers' schedulers for this network, by name."""
    if kind.prediction == "flow":
        flow: dict[str, Any] = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
        return {
            "Euler": diffusers.FlowMatchEulerDiscreteScheduler,
            "Euler, shift 3": lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
            "DPM++ 2M": lambda: diffusers.DPMSolverMultistepScheduler(**flow),
            "UniPC": lambda: diffusers.UniPCMultistepScheduler(**flow),
        }
    if kind.prediction == "edm":
        return {"Euler": diffusers.EDMEulerScheduler, "DPM++ 2M": diffusers.EDMDPMSolverMultistepScheduler}
    noise: dict[str, Any] = {**kind.betas, "num_train_timesteps": 1000, "prediction_type": kind.prediction}
    stable: dict[str, Any] = {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}
    karras: dict[str, Any] = {"use_karras_sigmas": True}
    found: dict[str, Callable[[], Any]] = {
        "DDIM": lambda: diffusers.DDIMScheduler(**noise, **stable),
        "DDIM, trailing": lambda: diffusers.DDIMScheduler(**noise, clip_sample=False, timestep_spacing="trailing"),
        "DPM++ 2M": lambda: diffusers.DPMSolverMultistepScheduler(**noise),
        "DPM++ 2M Karras": lambda: diffusers.DPMSolverMultistepScheduler(**noise, **karras),
        "UniPC": lambda: diffusers.UniPCMultistepScheduler(**noise),
        "Euler Karras": lambda: diffusers.EulerDiscreteScheduler(**noise, **karras),
    }
    if kind.betas == zoo.COSINE:  # its noise grows so far that times repeat, and diffusers begins at the wrong one
        return {name: make for name, make in found.items() if "Karras" not in name}
    return found


@dataclass(frozen=True)
class Cell:
    network: str
    scheduler: str
    steps: int
    guidance: float

    @property
    def kind(self) -> zoo.Member:
        return zoo.MEMBERS[self.network]

    def made(self) -> Any:
        scheduler = schedulers(self.kind)[self.scheduler]()
        scheduler.set_timesteps(self.steps)
        return scheduler

    def __str__(self) -> str:
        return f"{self.network} | {self.scheduler} | {self.steps} | {self.guidance:g}"


@functools.cache
def described(cell: Cell) -> RunInfo:
    scheduler = cell.made()
    run = describe(scheduler, scheduler.timesteps, data_as_velocity=True)
    return replace(run, guidance_scale=cell.guidance)


@dataclass(frozen=True)
class Bench:
    """Runs cells. folder: of weights and of plain results."""

    folder: Path
    samples: int = SAMPLES

    def network(self, name: str) -> nn.Module:
        return _network(name, self.folder / "weights")

    @torch.no_grad()
    def run(self, cell: Cell, leaps: Leaps | None = None) -> Tensor:
        """Final states, of the plain run or of one that leaps."""
        network, scheduler = self.network(cell.network), cell.made()
        x = torch.randn(self.samples, *cell.kind.shape, generator=torch.Generator().manual_seed(7))
        x = x * float(getattr(scheduler, "init_noise_sigma", 1.0))
        labels = torch.arange(self.samples) % zoo.CLASSES
        both = torch.cat([labels, torch.full_like(labels, zoo.NOBODY)])
        for step, time in enumerate(scheduler.timesteps):
            if leaps is not None and not leaps.evaluates(step):
                output = described(cell).landed(step, leaps.predict(step)[0], x)
            else:
                given = scheduler.scale_model_input(x, time) if hasattr(scheduler, "scale_model_input") else x
                if cell.guidance == 1:
                    output = network(given, time.expand(len(x)), labels)
                else:
                    e_c, e_u = network(torch.cat([given, given]), time.expand(2 * len(x)), both).chunk(2)
                    output = e_u + cell.guidance * (e_c - e_u)
                if leaps is not None:
                    leapt = leaps.observe(step, (described(cell).leaping(step, output, x),))[0]
                    output = described(cell).landed(step, leapt, x)
            x = scheduler.step(output, time, x, return_dict=False)[0]
        return x

    def plain(self, cell: Cell) -> Tensor:
        path = self.folder / "plain" / f"{str(cell).replace(' | ', '-').replace(' ', '_')}-{self.samples}.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, save({"x": self.run(cell).contiguous()}))
        return load_file(path)["x"]

    def measure(self, cell: Cell, plan: Plan) -> Measured:
        leaps = Leaps(plan, described(cell), Estimate(1.0))
        x, plain = self.run(cell, leaps), self.plain(cell)
        missed = leaps.estimated_error(x)
        share = plan.evaluations / plan.steps
        return Measured(share, _differences(x, plain), np.ones(0) if missed is None else _array(missed))


@dataclass(frozen=True, eq=False)
class Measured:
    """share: of evaluated steps. errors: relative differences from the plain run, per sample. missed: the root of the
    sum of squares of what the leaps missed, relative to the final state, from which an estimate follows."""

    share: float
    errors: Array
    missed: Array

    @property
    def quality(self) -> Array:
        """Mean and worst 5 % in dB, and the mean of what is at most `ENOUGH`, by which the prior was chosen."""
        decibels = _in_decibels(self.errors)
        return np.array([decibels.mean(), np.quantile(decibels, 0.05), np.minimum(decibels, ENOUGH).mean()])


def _differences(states: Tensor, reference: Tensor) -> Array:
    """Relative to the reference, per sample."""
    return _array((states - reference).flatten(1).norm(dim=1) / reference.flatten(1).norm(dim=1))


def _in_decibels(differences: Array) -> Array:
    return -20 * np.log10(np.clip(differences, 1e-6, None))


def _array(values: Tensor) -> Array:
    return np.asarray(values.double().numpy())


@functools.cache
def _network(name: str, folder: Path) -> nn.Module:
    return zoo.network(name, folder)


def cells(networks: Sequence[str], steps: Sequence[int], names: Sequence[str], scale: float) -> list[Cell]:
    """names: of schedulers. scale: of guidance; 0 is the network's own."""
    return [
        Cell(network, name, count, scale or zoo.MEMBERS[network].guidance)
        for network in networks
        for count in steps
        for name in schedulers(zoo.MEMBERS[network])
        if name in names
    ]


# -- tables


def default_table(bench: Bench, chosen: Sequence[Cell]) -> None:
    """The default in every cell."""
    print("| network | scheduler | steps | guidance | share | mean / worst 5 % in dB |\n|---|---|---|---|---|---|")
    found = []
    for cell in chosen:
        measured = bench.measure(cell, within().plan(described(cell)))
        found.append(measured.quality)
        print(f"| {cell} | {measured.share:.0%} | {found[-1][0]:.1f} / {found[-1][1]:.1f} |", flush=True)
    mean = np.mean(found, axis=0)
    print(f"| mean of {len(found)} cells | | | | | {mean[0]:.1f} / {mean[1]:.1f} |")


def compared(bench: Bench, chosen: Sequence[Cell]) -> None:
    """The prior with one of its numbers changed, at the same count of evaluations: what each is worth."""
    variants = {"the prior": PRIOR}
    for name, values in VARIANTS.items():
        variants |= {f"{name} = {value}": replace(PRIOR, **{name: value}) for value in values}
    print(f"| | mean / worst 5 % / mean up to {ENOUGH:g} dB | difference | least of the cells |\n|---|---|---|---|")
    base: Array | None = None
    for name, prior in variants.items():
        rows = []
        for cell in chosen:
            run = described(cell)
            plan = network_plan(run, within().plan(run).evaluations, prior)
            rows.append(bench.measure(cell, plan).quality)
        quality = np.array(rows)
        base = quality if base is None else base
        columns = (quality.mean(0), (quality - base).mean(0), (quality - base).min(0))
        shown = " | ".join(" / ".join(f"{value:+.1f}" for value in row) for row in columns)
        print(f"| {name} | {shown} |", flush=True)


def law(bench: Bench, chosen: Sequence[Cell], counts: Sequence[int]) -> None:
    """error = C / k^p with k evaluated steps: p and its residual, and how far the estimate is from the truth."""
    found, ratios = [], []
    for cell in chosen:
        run = described(cell)
        for count in counts:
            measured = bench.measure(cell, network_plan(run, count))
            found.append((cell, math.log10(count), *measured.quality[:2]))
            if len(measured.missed) == len(measured.errors):
                ratios.append(np.log2(measured.errors / measured.missed))
    for column, name in ((2, "mean"), (3, "worst 5 %")):
        design = np.array([[row[1], *(float(row[0] == cell) for cell in chosen)] for row in found])
        decibels = np.array([row[column] for row in found])
        solution, *_ = np.linalg.lstsq(design, decibels, rcond=None)
        rest = np.std(decibels - design @ solution)
        print(f"{name}: p = {solution[0] / 20:.2f}, residual {rest:.1f} dB with a constant for each cell")
    ratio = np.concatenate(ratios)
    centre = np.median(ratio)
    right = np.mean(np.abs(ratio - centre) <= 1)
    print(f"estimate: error = {2**centre:.3f} x what the leaps missed, within a factor of 2 for {right:.0%} of samples")


def single_leaps(bench: Bench, chosen: Sequence[Cell]) -> None:
    """The final error of one leap, all other steps evaluated, is C W^u angle^v step^t, with a C for each network."""
    rows, decibels = [], []
    for cell in chosen:
        run, shortest = described(cell), 2 if cell.steps < 40 else 3
        assert run.log_snr is not None
        assert run.response is not None
        half = -np.clip(run.log_snr, -30.0, 30.0) / 2  # log(sigma / alpha)
        angles, response = np.arctan(np.exp(half) / PRIOR.deviation), np.abs(run.response.final)
        for start in range(shortest, cell.steps - shortest, max(1, cell.steps // 14)):
            end = start + shortest
            plan = replace(network_plan(run, cell.steps), coarse=(*range(start + 1), *range(end, cell.steps)))
            factors = (response[start + 1 : end].sum(), abs(angles[start] - angles[end]), abs(half[start] - half[end]))
            rows.append([*np.log10(factors), *(float(cell.network == name) for name in zoo.CHOOSING)])
            decibels.append(-bench.measure(cell, plan).quality[0] / 20)
    for name, columns in (("W, angle, step", slice(None)), ("without W", slice(1, None))):
        design = np.array(rows)[:, columns]
        solution, *_ = np.linalg.lstsq(design, np.array(decibels), rcond=None)
        rest = 20 * np.std(np.array(decibels) - design @ solution)
        exponents = solution[: design.shape[1] - len(zoo.CHOOSING)]
        print(f"{name}: exponents {', '.join(f'{value:.2f}' for value in exponents)}, residual {rest:.1f} dB")


def against_converged(bench: Bench, networks: Sequence[str], counts: Sequence[int]) -> None:
    """The distance from the converged result: of plain runs, and of leaps over five steps for each evaluated one.

    Each with its best solver. counts: of evaluated steps; with guidance each is two evaluations.
    """
    print("| network | evaluated steps | plain | mean / worst 5 % in dB | leaps | mean / worst 5 % |")
    print("|---|---|---|---|---|---|")
    rows = []
    for name in networks:
        solvers, scale = schedulers(zoo.MEMBERS[name]), zoo.MEMBERS[name].guidance
        reference = bench.plain(Cell(name, "DPM++ 2M", CONVERGED, scale))
        for count in counts:
            plain, leaping = {}, {}
            for solver in solvers:
                plain[solver] = _quality(bench.plain(Cell(name, solver, count, scale)), reference)
            for solver in solvers.keys() & {"DPM++ 2M", "DPM++ 2M Karras"}:
                cell = Cell(name, solver, min(FREE_STEPS * count, LONGEST_RUN), scale)
                run = described(cell)
                leaping[solver] = _quality(bench.run(cell, Leaps(network_plan(run, count), run)), reference)
            best = max(plain, key=lambda solver: plain[solver][0]), max(leaping, key=lambda solver: leaping[solver][0])
            rows.append((count, *plain[best[0]], *leaping[best[1]]))
            print(
                f"| {name} | {count} | {best[0]} | {_shown(rows[-1][1:3])} | {best[1]} | {_shown(rows[-1][3:])} |",
                flush=True,
            )
    for count in counts:
        means = np.mean([row[1:] for row in rows if row[0] == count], axis=0)
        print(f"| mean | {count} | | {_shown(means[:2])} | | {_shown(means[2:])} |")


def _shown(decibels: Sequence[float] | Array) -> str:
    return " / ".join(f"{value:.1f}" for value in decibels)


def _quality(states: Tensor, reference: Tensor) -> tuple[float, float]:
    decibels = _in_decibels(_differences(states, reference))
    return float(decibels.mean()), float(np.quantile(decibels, 0.05))


FIRST_ORDER, SECOND_ORDER = ("DDIM", "Euler"), ("DPM++ 2M",)
VARIANTS: dict[str, tuple[Any, ...]] = {
    "by_index": (0.5, 0.7),
    "deviation": (0.4, 0.7, 1.0),
    "response_power": (0.0, 0.2, 0.6),
    "slope": (0.8, 1.0),
    "corrector": (0.7, 1.0),
    "start": ((0.5, 0.2), (2.0, 0.2), (1.0, 0.3)),
    "end": ((0.75, 0.12), (3.0, 0.12), (1.5, 0.2)),
    "power": (3.0,),
    "first": (2, 4),
}
GROUPS = {"choosing": zoo.CHOOSING, "kept-out": zoo.KEPT_OUT, "shipped": tuple(zoo.SHIPPED)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("default", "compare", "law", "leaps", "converged"))
    parser.add_argument("--networks", choices=tuple(GROUPS), default="choosing")
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 28, 50, 100])
    parser.add_argument("--schedulers", nargs="+", default=[*FIRST_ORDER, *SECOND_ORDER])
    parser.add_argument("--guidance-scale", type=float, default=0.0, help="0 is the network's own")
    parser.add_argument("--counts", type=int, nargs="+", default=[11, 14, 18, 24, 30], help="of evaluated steps")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--out", type=Path, default=Path("results/zoo"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(options.out, options.samples)
    chosen = cells(GROUPS[options.networks], options.steps, options.schedulers, options.guidance_scale)
    if options.what == "default":
        default_table(bench, chosen)
    elif options.what == "compare":
        compared(bench, chosen)
    elif options.what == "converged":
        against_converged(bench, GROUPS[options.networks], options.counts)
    elif options.what == "leaps":
        single_leaps(bench, [cell for cell in chosen if cell.kind.prediction != "sample"])
    else:
        law(bench, [cell for cell in chosen if cell.steps > max(options.counts)], options.counts)


if __name__ == "__main__":
    main()
