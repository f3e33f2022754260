"""The time grid of a run as noise levels, from its scheduler or schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thg.errors import ScheduleError
from thg.ode.diffusers_schedule import prediction_of, read_schedule
from thg.ode.outputs import Prediction
from thg.ode.schedule import Schedule
from thg.ode.scheduler_table import adds_noise, order_of
from thg.ode.solvers import Solver
from thg.plans.run import RunInfo
from thg.profiles.noise import noise_share

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NoiseGrid:
    """noise: sigma / (alpha + sigma) at the N distinct times of a run and at its end. middle: halfway in time.

    order: p of the solver; of solvers above order 2 the first two orders count.
    """

    noise: Array
    middle: Array
    prediction: Prediction
    order: int

    @classmethod
    def of(cls, scheduler: Any, run: RunInfo) -> NoiseGrid:
        if adds_noise(scheduler):
            read_schedule(scheduler)  # raises an error with the code to write instead
        count = len(set(run.positions))
        try:
            schedule: Schedule | None = read_schedule(scheduler)
        except ScheduleError:
            schedule = None
        if schedule is not None and schedule.steps == count:
            noise, middle = _levels(schedule)
        else:
            noise = np.append(_noise_of_calls(run), 0.0)
            middle = (noise[:-2] + noise[1:-1]) / 2
        return cls(noise, middle, prediction_of(scheduler), min(order_of(scheduler), 2))

    @classmethod
    def of_schedule(cls, schedule: Schedule, solver: Solver) -> NoiseGrid:
        """Of a run of `thg.sample`, which gives its guides outputs of the schedule's normal kind."""
        return cls(*_levels(schedule), schedule.normal, min(solver.order, 2))

    @property
    def steps(self) -> int:
        return len(self.noise) - 1

    def midpoint_weights(self, step: int) -> tuple[float, float]:
        """(p, q): the state at the midpoint of a step is p * (state at its start) + q * (state at its end).

        A first-order step holds the output, so the states along it lie on a line: in sigma for the flow state
        (1-s) x0 + s eps, and the network of any other model sees that state divided by hypot(s, 1-s).
        """
        start, middle, end = self.noise[step], self.middle[step], self.noise[step + 1]
        share = (middle - start) / (end - start)
        if self.prediction == "flow":
            return float(1 - share), float(share)
        size = np.hypot([start, middle, end], [1 - start, 1 - middle, 1 - end])
        return float((1 - share) * size[0] / size[1]), float(share * size[2] / size[1])


def _levels(schedule: Schedule) -> tuple[Array, Array]:
    """noise and middle."""
    middle = [schedule.node(i + 0.5).log_snr for i in range(schedule.steps - 1)]
    return noise_share(schedule.log_snr), noise_share(middle)


def _noise_of_calls(run: RunInfo) -> Array:
    if run.log_snr is None:
        raise ScheduleError(
            "the noise levels of this pipeline's scheduler are unknown, so it cannot be calibrated; write "
            "pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config)"
        )
    levels = dict(zip(run.positions, noise_share(run.log_snr), strict=True))
    return np.array([levels[position] for position in sorted(levels)])
