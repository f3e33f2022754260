"""The description of a run, from its scheduler, which is fetched from the device with at most one wait.

The scheduler's response to the network's outputs is measured by one pass of a copy over its calls. Each call gets a
unit vector in place of an output, so that the state after call n holds R[n, k] in its k-th entry; two further entries
show whether the scheduler is linear and free of noise.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thg.errors import THGError
from thg.ode.schedulers import adds_noise, order_of, scheduler_log_snr
from thg.plans.response import ADDS_NOISE, CLIPS, Response, probe
from thg.plans.run_info import RunInfo

LONGEST = 1000  # calls; the response of longer runs is not measured, since the matrix grows with their square
REMEMBERED = 32  # responses
LARGEST_LOG_SNR = 14.0  # for velocities; with less noise they are differences of almost equal numbers
NOISE_ARGUMENTS = ("eta", "s_churn")  # of `scheduler.step`: above 0, it adds noise

Measured = tuple[Response | None, str]
"""A response, or None and the reason."""

_cache: OrderedDict[Any, Measured] = OrderedDict()


def describe(
    scheduler: Any,
    timesteps: Any,
    obstacle: str = "",
    first: Any = None,
    length: int | None = None,
    data_as_velocity: bool = False,
) -> RunInfo:
    """A run over these time steps of a scheduler. Waits for the device once; nothing else in a run does.

    obstacle: why the scheduler's response does not apply to the run, if so. first: the time of the run's first call; it
    may begin later than the time steps. length: the number of its steps, if known; it may end before the last of them.
    data_as_velocity: whether the velocity leaps if the network predicts the data.
    """
    scheduler, calls = host_copy(scheduler, timesteps, first, length)
    times = [float(t) for t in calls]
    log_snr = _log_snr(scheduler, times)
    # calls at one noise level share a position; times may be rounded, so that different levels have one time
    levels = times if log_snr is None else log_snr
    place = {level: float(i) for i, level in enumerate(dict.fromkeys(levels))}
    response, reason = (None, obstacle) if obstacle else scheduler_response(scheduler, calls)
    velocity = None
    if data_as_velocity and response is not None and log_snr is not None and _predicts(scheduler) == "sample":
        response, velocity = _of_velocity(scheduler, calls, log_snr) or (response, None)
    noise_response = None
    if response is not None and log_snr is not None and (velocity or _predicts_velocity(scheduler)):
        ratio = np.exp(-np.clip(log_snr, -LARGEST_LOG_SNR, LARGEST_LOG_SNR) / 2) / _data_size(scheduler)
        noise_response = response.times(1 + ratio**2)
    return RunInfo(
        steps=len(times),
        positions=tuple(place[level] for level in levels),
        log_snr=log_snr,
        times=tuple(times),
        response=response,
        no_response=reason,
        order=order_of(scheduler),
        adds_noise=adds_noise(scheduler) or ADDS_NOISE in reason,
        clips=CLIPS in reason and _predicts(scheduler) != "sample",
        velocity=velocity,
        noise_response=noise_response,
    )


def known_run(scheduler: Any, steps: int) -> RunInfo:
    """The calls of a run with so many steps. The scheduler is one that is not used afterwards."""
    shift = {"mu": 1.0} if scheduler.config.get("use_dynamic_shifting") else {}
    try:
        scheduler.set_timesteps(steps, **shift)
    except (ValueError, IndexError, RuntimeError) as error:
        raise THGError(f"{type(scheduler).__name__} cannot run {steps} steps: {error}") from error
    return describe(scheduler, scheduler.timesteps, data_as_velocity=True)


def obstacle_in(arguments: Mapping[str, Any]) -> str:
    """Why the arguments of `scheduler.step` make its response useless, if they do."""
    noise = next((name for name in NOISE_ARGUMENTS if arguments.get(name)), "")
    return f"the scheduler {ADDS_NOISE} at every step ({noise} above 0)" if noise else ""


def further_arguments(scheduler: Any) -> list[str]:
    """What `scheduler.step` requires beside an output, its time and the sample."""
    others = list(inspect.signature(type(scheduler).step).parameters.values())[4:]  # the first: the scheduler itself
    return [one.name for one in others if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]


def _predicts(scheduler: Any) -> str:
    """The configured kind of the network's output."""
    return str(getattr(getattr(scheduler, "config", None), "prediction_type", ""))


def _predicts_velocity(scheduler: Any) -> bool:
    """Does the network predict v, or a mixture of data and noise as with EDM's preconditioning?"""
    return _predicts(scheduler) == "v_prediction" or hasattr(scheduler, "precondition_outputs")


def _data_size(scheduler: Any) -> float:
    """The standard deviation of the data that the network's outputs are scaled by."""
    return float(getattr(getattr(scheduler, "config", None), "sigma_data", None) or 1.0)


def _of_velocity(
    scheduler: Any, calls: Sequence[Tensor], log_snr: Sequence[float]
) -> tuple[Response, tuple[tuple[float, float], ...]] | None:
    """A scheduler's response to velocities instead of data, and `RunInfo.velocity`; None if it takes none."""
    other = copy.copy(scheduler)
    other.register_to_config(prediction_type="v_prediction")
    response, _ = scheduler_response(other, calls)
    if response is None or response.scales is None:
        return None
    ratio = np.exp(-np.clip(log_snr, -LARGEST_LOG_SNR, LARGEST_LOG_SNR) / 2)  # sigma / alpha
    alpha = 1 / np.sqrt(1 + ratio**2)
    return response, tuple(zip((alpha * response.scales).tolist(), (ratio * alpha).tolist(), strict=True))


def _log_snr(scheduler: Any, times: Sequence[float]) -> tuple[float, ...] | None:
    """The log-SNR at the last of the scheduler's time steps, if these are the times and the scheduler has it."""
    try:
        if [float(t) for t in scheduler.timesteps[-len(times) :]] != list(times):
            levels = dict(zip(scheduler.timesteps.tolist(), scheduler_log_snr(scheduler).tolist(), strict=True))
            return tuple(levels[time] for time in times)
        return tuple(scheduler_log_snr(scheduler).tolist()[-len(times) :])
    except (THGError, AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None


# -- the response


def scheduler_response(scheduler: Any, times: Sequence[Tensor]) -> Measured:
    """The response over the calls at these times. The scheduler is on the CPU."""
    key = _key(scheduler, times)
    measured = _cache.get(key)
    if measured is None:
        measured = _cache[key] = _measure(scheduler, times)
        if len(_cache) > REMEMBERED:
            _cache.popitem(last=False)
    return measured


def _key(scheduler: Any, times: Sequence[Tensor]) -> Any:
    """The complete state of a scheduler, and the times."""
    values = vars(scheduler).items()
    state = tuple(
        (name, v.double().numpy().tobytes() if isinstance(v, Tensor) else repr(v)) for name, v in sorted(values)
    )
    return type(scheduler), state, tuple(float(t) for t in times)


def _measure(scheduler: Any, times: Sequence[Tensor]) -> Measured:
    name = type(scheduler).__name__
    if len(times) > LONGEST:
        return None, f"a run of {len(times)} network calls is too long for it"
    if adds_noise(scheduler):
        return None, f"{name} {ADDS_NOISE} at every step"
    try:
        states, scales = _pass(scheduler, times, torch.from_numpy(probe(len(times))))
    except Exception as error:
        return None, f"{name} could not be run on unit vectors ({type(error).__name__}: {error})"
    response = Response.measured(states.numpy(), scales.numpy())
    return (response, "") if isinstance(response, Response) else (None, f"{name} {response}")


def _pass(scheduler: Any, times: Sequence[Tensor], outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The states after each call, one row each, and the factors on the network's inputs. The noise is the same in each
    pass."""
    scheduler = copy.deepcopy(scheduler)
    state = torch.zeros(1, 1, outputs.shape[1], dtype=torch.float64)  # some schedulers look for a channel dimension
    rows, scales = [], torch.ones(len(times), dtype=torch.float64)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for call, (time, output) in enumerate(zip(times, outputs, strict=True)):
            if hasattr(scheduler, "scale_model_input"):  # as pipelines do before each call; some schedulers require it
                scales[call] = scheduler.scale_model_input(torch.ones_like(state), time).flatten()[0]
            (state, *_) = scheduler.step(output.reshape(state.shape), time, state, return_dict=False)
            rows.append(state.flatten().double())
    return torch.stack(rows), scales


# -- the scheduler on the CPU


def host_copy(scheduler: Any, timesteps: Any, first: Any = None, length: int | None = None) -> tuple[Any, list[Tensor]]:
    """A copy of a scheduler on the CPU, and the time of each call of a run as a tensor without dimensions.

    timesteps: those of the run, which may be a part of the scheduler's own. first: the time of the first call, if the
    pipeline skips the first steps. length: the number of the run's steps, if known.
    """
    clone = copy.copy(scheduler)
    methods = {name for name in vars(scheduler) if callable(getattr(type(scheduler), name, None))}  # wrapped by others
    own = {name: value for name, value in vars(scheduler).items() if name not in methods}
    state = {name: None if _is_latents(value) else value for name, value in own.items()}
    times = timesteps if isinstance(timesteps, Tensor) else torch.as_tensor([float(t) for t in timesteps])
    times = times.reshape(len(times), -1)[:, 0]
    start = times[:1] if first is None else torch.as_tensor(first).reshape(-1)[:1]
    *values, times, start = _fetch([*state.values(), times, start])
    clone.__dict__ = dict(zip(state, values, strict=True))
    scale = getattr(getattr(scheduler, "config", None), "num_train_timesteps", None) or 1
    return clone, list(times[_begin(times.tolist(), float(start[0]), scale, length) :])


def _begin(times: list[float], first: float, scale: float, length: int | None) -> int:
    """The place of a run's first time. scale: of times that a network gets as a share of the schedule."""
    if math.isclose(first, times[0] / scale):
        return 0
    places = [place for place, time in enumerate(times) if time == first]
    if length is None:
        return places[0] if places else 0
    # some schedulers repeat a time: a run that begins late goes to the end
    return next((place for place in reversed(places) if place + length <= len(times)), 0)


def _is_latents(value: Any) -> bool:
    """State of an earlier run, which a new run does not use."""
    return isinstance(value, Tensor) and value.ndim > 1


def _own(value: Any) -> Any:
    """A copy: schedulers modify their lists and tensors in place."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return [None if _is_latents(item) else item for item in value] if isinstance(value, list) else value


def _fetch(values: Sequence[Any]) -> list[Any]:
    """Copies on the CPU; tensors on a device are fetched in a single transfer. Integers up to 2^24 stay exact."""
    remote = [value for value in values if _is_remote(value)]
    flat = torch.cat([value.detach().reshape(-1).float() for value in remote]).cpu() if remote else torch.empty(0)
    parts = iter(torch.split(flat, [value.numel() for value in remote]))
    return [next(parts).reshape(value.shape).to(value.dtype) if _is_remote(value) else _own(value) for value in values]


def _is_remote(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"
