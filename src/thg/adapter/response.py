"""The response of a diffusers scheduler to the network's outputs, measured by one pass of a copy over its calls.

Each call gets a unit vector in place of an output, so that the state after call n holds R[n, k] in its k-th entry; two
further entries show whether the scheduler is linear and free of noise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thg.adapter.scheduler_table import adds_noise
from thg.plans.response import Response, probe

LONGEST = 1000  # calls; the response of longer runs is not measured, since the matrix grows with their square
REMEMBERED = 32  # responses

_cache: OrderedDict[Any, Response | str] = OrderedDict()


def scheduler_response(scheduler: Any, times: Sequence[Tensor]) -> tuple[Response | None, str]:
    """The response over the calls at these times, or None and the reason. The scheduler is a copy on the CPU."""
    key = _key(scheduler, times)
    response = _cache.get(key)
    if response is None:
        response = _measure(scheduler, times)
        _cache[key] = response
        if len(_cache) > REMEMBERED:
            _cache.popitem(last=False)
    return (None, response) if isinstance(response, str) else (response, "")


def _key(scheduler: Any, times: Sequence[Tensor]) -> Any:
    """The complete state of a scheduler, and the times."""
    values = vars(scheduler).items()
    state = tuple(
        (name, v.double().numpy().tobytes() if isinstance(v, Tensor) else repr(v)) for name, v in sorted(values)
    )
    return type(scheduler), state, tuple(float(t) for t in times)


def _measure(scheduler: Any, times: Sequence[Tensor]) -> Response | str:
    name = type(scheduler).__name__
    if adds_noise(scheduler):
        return f"{name} adds noise at every step"
    if len(times) > LONGEST:
        return f"a run of {len(times)} network calls is too long for it"
    try:
        states, scales = _pass(scheduler, times)
    except Exception as error:
        return f"{name} could not be run on unit vectors ({type(error).__name__}: {error})"
    response = Response.measured(states.numpy(), scales.numpy())
    return f"{name} {response}" if isinstance(response, str) else response


def _pass(scheduler: Any, times: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The states after each call, one row each, and the factors on the network's inputs."""
    count = len(times)
    outputs = torch.from_numpy(probe(count))
    state = torch.zeros(1, 1, count + 2, dtype=torch.float64)  # some schedulers look for a channel dimension
    rows, scales = [], torch.ones(count, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for call, (time, output) in enumerate(zip(times, outputs, strict=True)):
            if hasattr(scheduler, "scale_model_input"):  # as pipelines do before each call; some schedulers require it
                scales[call] = scheduler.scale_model_input(torch.ones_like(state), time).flatten()[0]
            (state, *_) = scheduler.step(output.reshape(state.shape), time, state, return_dict=False)
            rows.append(state.flatten().double())
    return torch.stack(rows), scales
