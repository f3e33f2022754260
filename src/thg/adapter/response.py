"""The response of a diffusers scheduler to the network's outputs, measured by one pass of a copy over its calls.

Each call gets a unit vector in place of an output, so that the state after call n holds R[n, k] in its k-th entry; two
further entries show whether the scheduler is linear and free of noise.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thg.adapter.scheduler_table import adds_noise
from thg.plans.response import ADDS_NOISE, Response, probe

LONGEST = 1000  # calls; the response of longer runs is not measured, since the matrix grows with their square
REMEMBERED = 32  # responses


@dataclass(frozen=True)
class Measured:
    """response: None for the `reason`."""

    response: Response | None = None
    reason: str = ""


_cache: OrderedDict[Any, Measured] = OrderedDict()


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
        return Measured(reason=f"a run of {len(times)} network calls is too long for it")
    if adds_noise(scheduler):
        return Measured(None, f"{name} {ADDS_NOISE} at every step")
    try:
        states, scales = _pass(scheduler, times, torch.from_numpy(probe(len(times))))
    except Exception as error:
        return Measured(reason=f"{name} could not be run on unit vectors ({type(error).__name__}: {error})")
    response = Response.measured(states.numpy(), scales.numpy())
    if isinstance(response, Response):
        return Measured(response)
    return Measured(None, f"{name} {response}")


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
