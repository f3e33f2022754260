"""The corrector inside a pipeline: takes back what a leap has got wrong, as soon as a fresh guidance term shows it.

The guide says what was missing from the guidance at each step of the leap: some amount of one direction. Scheduler and
guidance formula are linear, so the state is off by what the scheduler makes of these amounts from a state of zero. A
copy of the pipeline's own scheduler finds it: it steps over the leap with the amounts in place of latents, and what
comes out says how much of the direction is added to the sample that `step` receives, and to whatever the scheduler
remembers of the leap. No network evaluation, and no more memory than the direction and the oldest term in it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thg.adapter.schedulers import READABLE, adds_noise, scheduler_class
from thg.plans.guide import Correction, Term

LINEAR = tuple(name for name in READABLE if name != "PNDMScheduler")  # PNDM holds more than outputs between steps
NONLINEAR_SETTINGS = ("thresholding", "clip_sample", "stochastic_sampling")
NOISE_ARGUMENTS = ("eta", "s_churn")


class Corrector:
    """The corrections of one run. `reason`: why there are none, if there are none."""

    def __init__(self, scheduler: Any, steps: int) -> None:
        self.reason = why_not(scheduler)
        self._scheduler = scheduler
        self._steps = steps
        self._step = -1
        self._snapshot: Any = (
            None  # the scheduler as it was at the start of the leap, with nothing but zeros to remember
        )
        self._times: list[Any] = []  # of the leap under way
        self._arguments: dict[str, Any] = {}
        self._fresh: tuple[Term, Term, Correction | None] | None = None
        if not self.reason:
            scheduler.step = StepTap(scheduler, self)

    def evaluated(self, conditional: Term, used: Term, correction: Correction | None) -> None:
        """The network has been evaluated with all branches: the step that follows uses this term."""
        self._fresh = (conditional, used, correction)

    def step(self, plain: Callable[..., Any], output: Any, time: Any, sample: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of the scheduler's `step`."""
        self._step += 1
        fresh, self._fresh = self._fresh, None
        scale = 0.0
        if not self.reason:
            scale, self.reason = self._scale(fresh, output, kwargs)
        if not self.reason and fresh is not None:
            if fresh[2] is not None:
                sample = self._corrected(sample, fresh[2], scale)
            self._snapshot, self._times = _zeroed(self._scheduler, sample.shape), []
        self._times.append(time)
        self._arguments = {**kwargs, "return_dict": False}
        if self._step == self._steps - 1 or self.reason:
            self.detach()
        return plain(output, time, sample, *args, **kwargs)

    def detach(self) -> None:
        """The scheduler is what it was."""
        if isinstance(vars(self._scheduler).get("step"), StepTap):
            del self._scheduler.step
        self._snapshot = self._fresh = None

    @property
    def note(self) -> str:
        if self.reason:
            return f"the corrector was left out: {self.reason}"
        if self._step < 0:
            return "the corrector was left out: this pipeline steps with a scheduler other than its own"
        return ""

    # -- what a leap has got wrong

    def _corrected(self, sample: Tensor, correction: Correction, scale: float) -> Tensor:
        clone = self._snapshot
        state = _number(0.0)
        for amount, time in zip(correction.amounts, self._times, strict=True):
            (state, *_) = clone.step(_number(scale * amount), time, state, **self._arguments)
        (direction,) = correction.direction
        for name, value in list(vars(self._scheduler).items()):
            corrected = _with_response(value, vars(clone).get(name), direction)
            if corrected is not value:
                setattr(self._scheduler, name, corrected)
        return _added(sample, state, direction)

    @staticmethod
    def _scale(
        fresh: tuple[Term, Term, Correction | None] | None, output: Any, arguments: dict[str, Any]
    ) -> tuple[float, str]:
        """w - 1, as the pipeline's formula has just applied it; or why this run cannot be corrected."""
        if any(arguments.get(name) for name in NOISE_ARGUMENTS):
            return 0.0, "the scheduler adds noise at every step (eta or s_churn above 0)"
        if fresh is None:
            return 0.0, ""
        conditional, used, _ = fresh
        if len(conditional) != 1 or len(used) != 1:
            return 0.0, "the network's output has several parts"
        if not isinstance(output, Tensor) or output.shape != conditional[0].shape:
            return 0.0, "the pipeline reshapes the network's output before the scheduler's step"
        term, guided = used[0], output.float()
        guidance = guided - conditional[0].float()
        pairs = ((guidance, term), (term, term), (guidance, guidance), (guided, guided))
        along, size, whole, everything = torch.stack([torch.sum(a * b) for a, b in pairs]).tolist()  # one sync
        scale = along / size if size else 0.0
        rest = math.sqrt(max(0.0, whole - along * scale))
        rounding = 8 * torch.finfo(output.dtype).eps * math.sqrt(everything)
        if not rest <= 0.01 * math.sqrt(whole) + rounding:
            return 0.0, "the pipeline's guidance formula is not linear (guidance_rescale, or a norm that is kept)"
        return scale, ""


class StepTap:
    """Stands in for a scheduler's `step`, with its signature, for the length of a run."""

    def __init__(self, scheduler: Any, corrector: Corrector) -> None:
        self._plain = functools.partial(type(scheduler).step, scheduler)
        self._corrector = corrector
        functools.update_wrapper(self, type(scheduler).step)
        self.__signature__ = inspect.signature(self._plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self.__signature__.bind(*args, **kwargs).arguments
        rest = given.pop("kwargs", {})
        output, time, sample = given.pop("model_output"), given.pop("timestep"), given.pop("sample")
        return self._corrector.step(self._plain, output, time, sample, **given, **rest)


def why_not(scheduler: Any) -> str:
    """Why a scheduler cannot be corrected, or nothing."""
    name = type(scheduler).__name__
    if adds_noise(scheduler):
        return f"{name} adds noise at every step"
    if scheduler_class(scheduler, LINEAR) is None:
        return f"{name} is not among the schedulers that are known to be linear"
    setting = next((s for s in NONLINEAR_SETTINGS if getattr(scheduler.config, s, False)), None)
    return f"{name} is not linear with {setting}=True" if setting else ""


# -- the memory of a scheduler


def _number(value: float) -> Tensor:
    """A number in the shape of a batch of latents: some schedulers look for a channel dimension."""
    return torch.full((1, 1), value, dtype=torch.float64)


def _zeroed(scheduler: Any, shape: torch.Size) -> Any:
    """A copy that stands at the same step and remembers nothing but zeros, for numbers in place of latents."""
    clone = copy.copy(scheduler)
    state = {name: _zeros(value, shape) for name, value in vars(scheduler).items()}
    clone.__dict__ = {name: value for name, value in state.items() if name not in ("step", "set_timesteps")}
    return clone


def _zeros(value: Any, shape: torch.Size) -> Any:
    if isinstance(value, Tensor) and value.shape == shape:
        return _number(0.0)
    return [_zeros(item, shape) for item in value] if isinstance(value, list) else value


def _with_response(live: Any, response: Any, direction: Tensor) -> Any:
    """What the scheduler remembers, with the response added where it is a latent."""
    if isinstance(live, list) and isinstance(response, list) and len(live) == len(response):
        return [_with_response(a, b, direction) for a, b in zip(live, response, strict=True)]
    if isinstance(live, Tensor) and live.shape == direction.shape and isinstance(response, Tensor):
        return _added(live, response, direction)
    return live


def _added(value: Tensor, amount: Tensor, direction: Tensor) -> Tensor:
    return value + (float(amount) * direction).to(value.dtype)
