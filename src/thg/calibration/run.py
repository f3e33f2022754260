"""`calibrate`: runs a pipeline over prompts, batch by batch, and makes a profile of what its guidance does."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from thg.adapter import enabled
from thg.adapter.identity import fingerprint
from thg.calibration.grid import NoiseGrid
from thg.calibration.record import Held, Recorder
from thg.calibration.shards import Rows, Shards
from thg.distribution import versions
from thg.errors import ProfileError
from thg.ode.outputs import Prediction
from thg.plans.guide import Guide, Run
from thg.profiles.profile import About, Moments, Profile, exact_sum
from thg.seeds import generators

ANCHORS = 10
SENSITIVITY_SAMPLES = 4

Array = NDArray[np.float64]


def calibrate(
    pipe: Any,
    prompts: Sequence[Any],
    *,
    steps: int | None = None,
    guidance_scale: float | None = None,
    batch_size: int = 4,
    seed: int = 0,
    sensitivity: int = SENSITIVITY_SAMPLES,
    folder: str | PathLike[str] | None = None,
    call: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Profile:
    """Measures where the guidance of a pipeline may leap (Algorithm 3), in normal runs of it.

    What most people set:
        prompts: one sample each; some tens are enough for a plan. Class labels for a class-conditional pipeline.
        steps, guidance_scale: as the pipeline will be used; its own defaults unless set.
        batch_size: prompts per run. It does not change the result.

    What few touch:
        seed: the noise of a sample depends on it and on the place of its prompt, and on nothing else.
        sensitivity: samples for the sensitivity curve, which the optimal planner weighs errors with; 0 leaves it out.
            It costs eleven runs of plain CFG for each.
        folder: where finished batches are kept. A calibration that was killed goes on from there, and the processes of
            `accelerate launch` share the work in it.
        call: more arguments of the pipeline's call (height, negative_prompt, ...).

    Costs 4 evaluations per step and prompt, of which 2 are the pipeline's own.
    """
    work = _Work.of(pipe, prompts, steps, guidance_scale, batch_size, seed, sensitivity, call or {})
    process = _Process.current()
    if process.count > 1 and folder is None:
        raise ProfileError("several processes need a folder to share: calibrate(..., folder='calibration')")
    shards = _shared_shards(Path(folder) if folder is not None else None, work, process)
    with _progress(work, shards, process, progress) as advance, _quiet(pipe):
        for kind, samples in work.units(shards, process):
            measure = work.measure_samples if kind == "samples" else work.measure_sensitivity
            shards.add(kind, samples, measure(samples))
            advance(work.cost(kind, samples))
    process.wait()
    return work.profile(shards)


# -- the work


@dataclass
class _Work:
    """A calibration: what is measured, on which samples, and how it becomes a profile."""

    pipe: Any
    prompts: list[Any]
    arguments: dict[str, Any]
    steps: int
    guidance_scale: float
    batch_size: int
    seed: int
    sensitivity: int
    prompt_name: str
    grid: NoiseGrid | None = field(default=None, init=False)

    @classmethod
    def of(
        cls,
        pipe: Any,
        prompts: Sequence[Any],
        steps: int | None,
        guidance_scale: float | None,
        batch_size: int,
        seed: int,
        sensitivity: int,
        call: Mapping[str, Any],
    ) -> _Work:
        if isinstance(prompts, str) or not len(prompts):
            raise ProfileError(
                "prompts must be a list with at least one prompt: calibrate(pipe, ['a red bicycle', ...])"
            )
        if batch_size < 1 or sensitivity < 0:
            raise ProfileError(
                f"batch_size must be at least 1 and sensitivity at least 0, not {batch_size}, {sensitivity}"
            )
        accepted = inspect.signature(type(pipe).__call__).parameters
        prompt_name = next((name for name in ("prompt", "class_labels") if name in accepted), None)
        if prompt_name is None or "num_inference_steps" not in accepted:
            raise ProfileError(
                f"{type(pipe).__name__} takes no prompt, or no num_inference_steps; thg cannot calibrate it"
            )
        scale_name = "true_cfg_scale" if "true_cfg_scale" in accepted else "guidance_scale"
        steps = accepted["num_inference_steps"].default if steps is None else steps
        scale = accepted[scale_name].default if guidance_scale is None else guidance_scale
        if not isinstance(steps, int) or steps < 2:
            raise ProfileError(f"steps must be a whole number of at least 2, not {steps!r}")
        if not isinstance(scale, int | float) or not math.isfinite(scale) or scale <= 1:
            raise ProfileError(f"guidance_scale must be above 1, not {scale!r}: there is no guidance to measure")
        arguments = {**call, "num_inference_steps": steps, scale_name: float(scale)}
        if "output_type" in accepted:
            arguments.setdefault("output_type", "latent")
        if unknown := sorted(set(arguments) - set(accepted)):
            raise ProfileError(f"{type(pipe).__name__} takes no argument {unknown[0]!r}")
        sensitivity = min(sensitivity, len(prompts)) if steps >= 4 else 0
        return cls(pipe, list(prompts), arguments, steps, float(scale), batch_size, seed, sensitivity, prompt_name)

    def settings(self) -> dict[str, Any]:
        """All that the measured rows depend on."""
        return {
            "network": fingerprint(self.pipe),
            "model": _model_name(self.pipe),
            "scheduler": [type(self.pipe.scheduler).__name__, _settings_of(self.pipe.scheduler)],
            "arguments": self.arguments,
            "prompts": hashlib.sha256("\0".join(map(str, self.prompts)).encode()).hexdigest(),
            "seed": self.seed,
            "noise": "thg.seeds",  # 0.1.0 drew other noise from the same seed
            "sensitivity": self.sensitivity,
        }

    def units(self, shards: Shards, process: _Process) -> list[tuple[str, list[int]]]:
        """The share of this process in what is still to be measured, a batch each.

        Batches are dealt out by their number, whether done or not: processes that start a moment apart agree.
        """
        batches = [
            (kind, range(first, min(first + self.batch_size, count)))
            for kind, count in (("samples", len(self.prompts)), ("sensitivity", self.sensitivity))
            for first in range(0, count, self.batch_size)
        ]
        done = {kind: shards.done(kind) for kind in ("samples", "sensitivity")}
        mine = (
            (kind, [i for i in batch if i not in done[kind]]) for kind, batch in batches[process.rank :: process.count]
        )
        return [(kind, samples) for kind, samples in mine if samples]

    def cost(self, kind: str, samples: Sequence[int]) -> int:
        """Network evaluations."""
        per_sample = 4 * self.steps - 2 if kind == "samples" else 2 * self.steps * (len(self.anchors) + 1)
        return per_sample * len(samples)

    @property
    def anchors(self) -> tuple[int, ...]:
        """The steps at which the sensitivity is measured: spread from 1 to N-2."""
        places = np.linspace(1, self.steps - 2, min(ANCHORS, self.steps - 2)) if self.sensitivity else np.zeros(0)
        return tuple(int(k) for k in np.unique(np.round(places)))

    def measure_samples(self, samples: Sequence[int]) -> Rows:
        recorder = self._run(samples, lambda run: Recorder(run, self._grid_of(run), len(samples)))
        rows: Rows = recorder.measured()
        grid = self.grid
        assert grid is not None
        same = {"times": recorder.times, "noise": grid.noise, "middle": grid.middle}
        rows |= {name: np.tile(values, (len(samples), 1)) for name, values in same.items()}
        rows["solver"] = np.tile([float(grid.order), float(_KINDS.index(grid.prediction))], (len(samples), 1))
        return rows

    def measure_sensitivity(self, samples: Sequence[int]) -> Rows:
        """S_k: an error made at step k, by holding d there, as a share of itself at the last network call."""
        last = self.steps - 1
        watched = (*(k + 1 for k in self.anchors), last)
        plain = self._held_at(None, samples, watched)
        survived = []
        for k in self.anchors:
            held = self._held_at(k, samples, (k + 1, last))
            made = (held[k + 1] - plain[k + 1]).norm(dim=1)
            left = (held[last] - plain[last]).norm(dim=1)
            survived.append(torch.where(made > 0, left / made, torch.ones_like(made)))
        return {"survival": torch.stack(survived, dim=1).double().cpu().numpy()}

    def _held_at(self, k: int | None, samples: Sequence[int], watched: tuple[int, ...]) -> dict[int, torch.Tensor]:
        states: dict[int, torch.Tensor] = self._run(samples, lambda run: Held(run, k, watched, len(samples))).states
        return states

    def _run(self, samples: Sequence[int], guide: Callable[[Run], Guide]) -> Any:
        """One run of the pipeline with plain CFG under the eyes of a guide."""
        maker = _Maker(guide)
        batch = {self.prompt_name: [self.prompts[i] for i in samples], "generator": generators(self.seed, samples)}
        with enabled(self.pipe, maker), torch.no_grad():
            self.pipe(**batch, **self.arguments)
        if maker.made is None:
            raise ProfileError(f"{type(self.pipe).__name__} ran without calling its network; nothing was measured")
        return maker.made

    def _grid_of(self, run: Run) -> NoiseGrid:
        if len(set(run.positions)) != self.steps:
            raise ProfileError(
                f"a run of {self.steps} steps has {len(set(run.positions))} time steps; set steps= to what the "
                "pipeline runs, and leave strength or denoising_end alone"
            )
        self.grid = NoiseGrid.of(self.pipe.scheduler, run)
        return self.grid

    def profile(self, shards: Shards) -> Profile:
        rows = shards.rows("samples")
        if len(rows["gram"]) != len(self.prompts):
            raise ProfileError(f"only {len(rows['gram'])} of {len(self.prompts)} prompts are measured; run it again")
        order, kind = rows["solver"][0]
        about = About(
            pipeline=type(self.pipe).__name__,
            network=fingerprint(self.pipe),
            model=_model_name(self.pipe),
            scheduler=type(self.pipe.scheduler).__name__,
            prediction=_KINDS[int(kind)],
            order=int(order),
            steps=self.steps,
            guidance_scale=self.guidance_scale,
            seed=self.seed,
            date=shards.date,
            versions=versions(),
        )
        survival = shards.rows("sensitivity")
        return Profile(
            about,
            rows["times"][0],
            rows["noise"][0],
            rows["middle"][0],
            Moments.of(rows["tortoise"]),
            Moments.of(rows["hare"]),
            Moments.of(rows["tortoise_rate"]),
            Moments.of(rows["hare_rate"]),
            gram=exact_sum(rows["gram"]),
            anchors=self.anchors,
            sensitivity=Moments.of(survival["survival"]) if survival else None,
        )


_KINDS: tuple[Prediction, ...] = get_args(Prediction)


class _Maker:
    """Makes one guide and keeps it."""

    def __init__(self, make: Callable[[Run], Guide]) -> None:
        self._make = make
        self.made: Guide | None = None

    def guide(self, run: Run) -> Guide:
        self.made = self._make(run)
        return self.made


def _model_name(pipe: Any) -> str:
    """The last part of where the model came from, without anybody's folders in it."""
    return Path(str(getattr(pipe, "name_or_path", "") or "")).name


# -- processes, progress


def _settings_of(scheduler: Any) -> dict[str, Any]:
    """A scheduler's settings, without what diffusers notes about them in no fixed order."""
    return {name: value for name, value in dict(scheduler.config).items() if not name.startswith("_")}


@dataclass(frozen=True)
class _Process:
    """This process among those of `accelerate launch`."""

    rank: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None

    @classmethod
    def current(cls) -> _Process:
        try:
            from accelerate import PartialState
        except ImportError:
            return cls()
        state = PartialState(cpu=not torch.accelerator.is_available())  # unasked, it sees one process on CPUs
        return cls(state.process_index, state.num_processes, state.wait_for_everyone)


def _shared_shards(folder: Path | None, work: _Work, process: _Process) -> Shards:
    """The first process makes the folder, the others find it there."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    if process.rank == 0:
        shards = Shards(folder, work.settings(), date)
        process.wait()
        return shards
    process.wait()
    return Shards(folder, work.settings(), date)


@contextmanager
def _progress(work: _Work, shards: Shards, process: _Process, shown: bool) -> Iterator[Callable[[int], None]]:
    from tqdm.auto import tqdm

    ahead = sum(work.cost(kind, samples) for kind, samples in work.units(shards, process))
    with tqdm(total=ahead, unit="eval", desc="calibrating", disable=not (shown and process.rank == 0)) as bar:
        yield bar.update


@contextmanager
def _quiet(pipe: Any) -> Iterator[None]:
    """Without the pipeline's own progress bars."""
    before = dict(getattr(pipe, "_progress_bar_config", {}))
    pipe.set_progress_bar_config(**{**before, "disable": True})
    try:
        yield
    finally:
        pipe.set_progress_bar_config(**before)
