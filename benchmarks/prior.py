"""Measures leaps of the whole network on the zoo: plain runs, leaping runs with the same seeds, and their difference.

    python -m benchmarks.prior --out FOLDER        # in the root of the repository

A cell is a network of `benchmarks.zoo`, a scheduler of diffusers, a number of steps and a guidance scale. Its quality
is the relative difference of the final states from those of the plain run, in dB (40 dB is 1 %): the mean and the worst
5 % of 48 samples. Final states of plain runs are kept in the folder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
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
from thg.adapter.describe import describe
from thg.files import write_atomically
from thg.plans import hare
from thg.plans.guide import Run

Array = NDArray[np.float64]
SAMPLES = 48


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
    noise: dict[str, Any] = {**kind.betas, "num_train_timesteps": 1000, "prediction_type": kind.prediction}
    stable: dict[str, Any] = {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}
    karras: dict[str, Any] = {"use_karras_sigmas": True}
    found: dict[str, Callable[[], Any]] = {
        "DDIM": lambda: diffusers.DDIMScheduler(**noise, **stable),
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


@dataclass(frozen=True)
class Result:
    """x: final states. nodes: for each leap the errors in the next input, per sample."""

    x: Tensor
    missed: tuple[Tensor, ...] = ()


@functools.cache
def described(cell: Cell) -> Run:
    scheduler = cell.made()
    return replace(describe(scheduler, scheduler.timesteps), guidance_scale=cell.guidance)


class Leaps:
    """What reaches the scheduler: evaluated outputs at the steps of a grid, predictions elsewhere, and corrections."""

    def __init__(self, run: Run, grid: Sequence[int], slope: float, corrector: float, axis: Sequence[float]) -> None:
        self.run, self.grid, self.slope, self.corrector, self.axis = run, set(grid), slope, corrector, axis
        self.nodes: list[tuple[int, Tensor]] = []
        self.pending: list[tuple[int, Array, list[Tensor]]] = []
        self.missed: list[Tensor] = []

    def weights(self, nodes: Sequence[int], step: int) -> list[float]:
        places = [self.axis[node] for node in nodes]
        return list(hare.weights(places, self.axis[step], 2, self.slope))

    def output(self, step: int, evaluated: Tensor | None) -> Tensor:
        if evaluated is None:
            nodes = self.nodes[-2:]
            weights = self.weights([i for i, _ in nodes], step)
            result = sum((w * p for w, (_, p) in zip(weights, nodes[-len(weights) :], strict=True)), torch.zeros(()))
        else:
            self.judge(step, evaluated)
            self.nodes = [*self.nodes[-2:], (step, evaluated)]
            result = evaluated
        for first, gains, terms in self.pending:
            if step - first < len(gains):
                for weight, term in zip(gains[step - first], terms, strict=True):
                    result = result + float(weight) * term
        return result

    def judge(self, step: int, new: Tensor) -> None:
        """What the last leap missed, as multiples of the outputs, and what to add from now on."""
        if not self.nodes or step - self.nodes[-1][0] < 2:
            return
        nodes = self.nodes[-2:]
        known = [i for i, _ in nodes]
        places = [self.axis[i] for i in (*known, step)]
        missed = []
        for call in range(known[-1] + 1, step):
            used = self.weights(known, call)
            better = hare.interpolation(places, self.axis[call])
            missed.append(np.subtract(better, [*[0.0] * (len(known) - len(used)), *used, 0.0]))
        amounts = np.array(missed)
        terms = [p for _, p in nodes] + [new]
        response = self.run.response
        if response is None:
            return
        first = known[-1] + 1
        if step < self.run.steps:
            error = response.input_error(first, amounts)
            total = sum((float(e) * t for e, t in zip(error, terms, strict=True)), torch.zeros(()))
            self.missed.append(total.flatten(1).norm(dim=1))
        if self.corrector:
            self.pending.append((step, response.corrections(first, self.corrector * amounts), terms))


@dataclass(frozen=True)
class Bench:
    """Runs cells. folder: of weights and of plain results."""

    folder: Path
    samples: int = SAMPLES

    def network(self, name: str) -> nn.Module:
        return _network(name, self.folder / "weights")

    @torch.no_grad()
    def run(self, cell: Cell, follow: Any = None, grid: Sequence[int] | None = None, scheduler: Any = None) -> Tensor:
        """Final states. follow: has `output(step, evaluated)`; without it all steps are plain."""
        network, scheduler = self.network(cell.network), scheduler or cell.made()
        x = torch.randn(self.samples, *cell.kind.shape, generator=torch.Generator().manual_seed(7))
        x = x * float(scheduler.init_noise_sigma) if hasattr(scheduler, "init_noise_sigma") else x
        labels = torch.arange(self.samples) % zoo.CLASSES
        both = torch.cat([labels, torch.full_like(labels, zoo.NOBODY)])
        evaluated = None if grid is None else set(grid)
        for i, time in enumerate(scheduler.timesteps):
            output = None
            if evaluated is None or i in evaluated:
                given = scheduler.scale_model_input(x, time) if hasattr(scheduler, "scale_model_input") else x
                if cell.guidance == 1:
                    output = network(given, time.expand(len(x)), labels)
                else:
                    e_c, e_u = network(torch.cat([given, given]), time.expand(2 * len(x)), both).chunk(2)
                    output = e_u + cell.guidance * (e_c - e_u)
            used = output if follow is None else follow.output(i, output)
            x = scheduler.step(used, time, x, return_dict=False)[0]
        return x

    def plain(self, cell: Cell) -> Tensor:
        path = self.folder / "plain" / f"{str(cell).replace(' | ', '-').replace(' ', '_')}-{self.samples}.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, save({"x": self.run(cell).contiguous()}))
        return load_file(path)["x"]

    def leaping(
        self, cell: Cell, grid: Sequence[int], slope: float, corrector: float, axis: Sequence[float] | None = None
    ) -> Result:
        run = described(cell)
        leaps = Leaps(run, grid, slope, corrector, axis or run.positions)
        x = self.run(cell, leaps, grid)
        return Result(x, tuple(leaps.missed))

    def errors(self, cell: Cell, x: Tensor) -> Array:
        """The relative difference from the plain run, per sample."""
        plain = self.plain(cell)
        return np.asarray(((x - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)).double().numpy())


@functools.cache
def _network(name: str, folder: Path) -> nn.Module:
    return zoo.network(name, folder)


def decibels(errors: Array) -> Array:
    return np.asarray(-20 * np.log10(np.clip(errors, 1e-6, None)))


def quality(errors: Array) -> tuple[float, float]:
    """Mean and worst 5 % in dB."""
    found = decibels(errors)
    return float(found.mean()), float(np.quantile(found, 0.05))


def cells(
    networks: Sequence[str],
    steps: Sequence[int] = (20, 28, 50, 100),
    names: Sequence[str] | None = None,
    scales: Sequence[float] = (0.0,),
) -> Iterator[Cell]:
    """scales: guidance scales; 0 is the network's own."""
    for network in networks:
        kind = zoo.MEMBERS[network]
        for name in schedulers(kind):
            if names is None or name in names:
                for count in steps:
                    for scale in scales:
                        yield Cell(network, name, count, scale or kind.guidance)
