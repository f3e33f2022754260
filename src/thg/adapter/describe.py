"""The description of a run for guides, from its scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thg.adapter.host import host_copy
from thg.adapter.response import Measured, scheduler_response
from thg.adapter.scheduler_table import adds_noise, order_of
from thg.adapter.schedulers import scheduler_log_snr
from thg.errors import THGError
from thg.plans.guide import Run
from thg.plans.response import ADDS_NOISE


def describe(scheduler: Any, timesteps: Any, obstacle: str = "", first: Any = None) -> Run:
    """A run over these time steps of a scheduler. Waits for the device once; nothing else in a run does.

    obstacle: why the scheduler's response does not apply to the run, if so. first: the time of the run's first call; it
    may begin later than the time steps.
    """
    scheduler, calls = host_copy(scheduler, timesteps, first)
    times = [float(t) for t in calls]
    place = {t: float(i) for i, t in enumerate(dict.fromkeys(times))}
    measured = Measured(reason=obstacle) if obstacle else scheduler_response(scheduler, calls)
    return Run(
        steps=len(times),
        positions=tuple(place[t] for t in times),
        log_snr=_log_snr(scheduler, times),
        times=tuple(times),
        response=measured.response,
        no_response=measured.reason,
        order=order_of(scheduler),
        adds_noise=adds_noise(scheduler) or ADDS_NOISE in measured.reason,
        weights=measured.weights,
    )


def known_run(scheduler: Any, steps: int) -> Run:
    """The calls of a run with so many steps. The scheduler is one that is not used afterwards."""
    shift = {"mu": 1.0} if scheduler.config.get("use_dynamic_shifting") else {}
    try:
        scheduler.set_timesteps(steps, **shift)
    except (ValueError, IndexError, RuntimeError) as error:
        raise THGError(f"{type(scheduler).__name__} cannot run {steps} steps: {error}") from error
    return describe(scheduler, scheduler.timesteps)


def _log_snr(scheduler: Any, times: Sequence[float]) -> tuple[float, ...] | None:
    """The log-SNR at these times, if the scheduler has it."""
    try:
        levels = dict(zip(scheduler.timesteps.tolist(), scheduler_log_snr(scheduler).tolist(), strict=True))
        return tuple(levels[time] for time in times)
    except (THGError, AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None
