"""Guidance for samplers in the style of k-diffusion: functions that call `model(x, sigma, cond=..., uncond=...,
cond_scale=...)` and expect denoised latents. The sampler is not changed; the model knows the run from its sigmas."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from thg.errors import PlanError, ScheduleError, THGError
from thg.ode.network import joined
from thg.ode.outputs import Node
from thg.plans.guide import Guide, HareGuide
from thg.plans.k_diffusion import SAME, Answer, Calls, trace
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan
from thg.plans.planners import Choice, Planned, guide_maker
from thg.plans.run_info import RunInfo
from thg.plans.summary import Summary, lost_in


class GuidedDenoiser:
    """A denoiser with classifier-free guidance that evaluates the unconditional branch only where a plan says so.

        model = thg.GuidedDenoiser(denoiser, thg.tapered(0.65), sigmas=sigmas, sampler=sample_heun)
        x = sample_heun(model, noise, sigmas, extra_args={"cond": c, "uncond": u, "cond_scale": 7.0})
        print(model.summary)

    Common arguments:
        denoiser: `denoiser(x, sigma, cond=...)`, which returns the denoised latents x0.
        plan: as for `thg.enable`; None is the same default.
        sigmas: the noise levels passed to the sampler.
        sampler: the sampler function. It is executed once on a few numbers to find at which noise levels it calls the
            model (Heun and DPM2 call more often than there are sigmas) and how its states depend on the outputs (needed
            by the corrector). Without it one call per sigma is expected; after an unexpected call the rest of the run
            is plain guidance and `summary` says so.

    Advanced arguments:
        batched: the denoiser takes both branches in one call, unconditional rows first, as in k-diffusion.
        flow: sigma is the time of a flow model, x = (1 - sigma) x0 + sigma eps, and not x = x0 + sigma eps.
        predicts: what the network inside the denoiser predicts, "noise", or "data": x0, v, or a mixture of x0 and the
            noise as with EDM's preconditioning. It decides what leaps with the whole network.

    A run begins with the first call, or with the first call after the previous run has ended; an interrupted run is
    discarded when the first noise level comes again. sigma is read on the host at each call, as such samplers do.
    """

    def __init__(
        self,
        denoiser: Callable[..., Tensor],
        plan: Choice = None,
        *,
        sigmas: Sequence[float] | Tensor,
        sampler: Callable[..., Tensor] | None = None,
        batched: bool = False,
        flow: bool = False,
        predicts: Literal["noise", "data"] = "noise",
    ) -> None:
        for name, given, shown in (("denoiser", denoiser, "x, sigma, cond="), ("sampler", sampler, "model, x, sigmas")):
            if not callable(given) and not (name == "sampler" and given is None):
                raise PlanError(f"{name} must be a function, called as {name}({shown}), not {given!r}")
        if predicts not in ("noise", "data"):
            raise PlanError(f"predicts must be 'noise' or 'data' (also for v and EDM's networks), not {predicts!r}")
        self._denoiser, self._batched, self._flow = denoiser, batched, flow
        self._maker = guide_maker(plan)
        self._grid = _levels(sigmas)
        self._calls = _calls(sampler, self._grid, _noise)
        self._content = _noise if predicts == "noise" or flow else _velocity
        self._leaping = self._calls if self._content is _noise else _calls(sampler, self._grid, _velocity)
        self._run: _Run | None = None
        self._last: _Run | None = None

    def __call__(self, x: Tensor, sigma: Tensor, *, cond: Any, uncond: Any, cond_scale: Any, **more: Any) -> Tensor:
        """The guided denoised latents. cond_scale: a number, or a tensor with one for each sample.

        Without an unconditional condition, or with a scale of 1, there is no guidance. Further arguments are passed to
        the denoiser.
        """
        _require_scale(cond_scale, x)
        run = self._at(float(sigma.reshape(-1)[0] if isinstance(sigma, Tensor) else sigma), cond_scale)
        guided = uncond is not None and not (isinstance(cond_scale, int | float) and cond_scale == 1)
        guide, call = run.guide_for(cond, uncond if guided else None, x.shape), run.call
        branches = 2 if guided else 1
        evaluates = guide is None or guide.evaluates(call)
        if isinstance(guide, DenoisedLeaps) and not evaluates:
            run.count(0, branches, x)
            return guide.predict(call, x)
        if not guided or not evaluates:
            output = self._denoiser(x, sigma, cond=cond, **more)
            _require_denoised(output, x.shape)
            if guided and isinstance(guide, DenoisedGuide):
                output = _combined(output, guide.predict(call, output), cond_scale)
        else:
            output, unconditional = self._pair(x, sigma, cond, uncond, more)
            _require_denoised(unconditional, x.shape)
            _require_denoised(output, x.shape)
            if isinstance(guide, DenoisedGuide):
                unconditional = guide.observe(call, output, unconditional)
            output = _combined(output, unconditional, cond_scale)
        if isinstance(guide, DenoisedLeaps):
            output = guide.observe(call, x, output)
        run.count(branches if evaluates else 1, branches, x)
        return output

    @property
    def summary(self) -> Summary:
        """The cost of the last run, so far."""
        if self._last is None:
            return Summary("thg.GuidedDenoiser", 0, 0, 0, (), 0.0, note="no run yet")
        return self._last.summary()

    def reset(self) -> None:
        """Discards an interrupted run."""
        self._run = None

    # -- one call

    def _at(self, level: float, cond_scale: Any) -> _Run:
        """The run that a call at this noise level belongs to."""
        first = self._calls.sigmas[0]
        if self._run is None or self._run.finished or (_same(level, first) and not self._run.expects(level)):
            if not _same(level, first):
                raise ScheduleError(
                    f"the run starts at sigma = {level:.4g}, but the model's sigmas start at {first:.4g}; write "
                    "GuidedDenoiser(..., sigmas=) with the sigmas that the sampler gets"
                )
            self._run = self._last = self._begin(cond_scale)
        self._run.arrived(level)
        return self._run

    def _begin(self, cond_scale: Any) -> _Run:
        scale = float(cond_scale.max() if isinstance(cond_scale, Tensor) else cond_scale)
        log_snr = [_log_snr(sigma, self._flow) for sigma in self._calls.sigmas]
        maker = self._maker
        if isinstance(maker, Planned) and maker.skips == "network":
            factors = [self._content(sigma)[0] for sigma in self._calls.sigmas]
            velocity = tuple((a, -unit) for a, unit in zip(factors, self._leaping.units, strict=True))
            leaping = replace(self._leaping.run(self._grid, scale, log_snr), velocity=velocity)
            if leaping.response is not None:  # a network that predicts a velocity sees states of unit variance
                leaping = replace(leaping, response=replace(leaping.response, scales=np.sqrt(factors)))
            return _Run(self._calls, lambda: DenoisedLeaps(maker.leaps(leaping), leaping))
        run = self._calls.run(self._grid, scale, log_snr)
        return _Run(self._calls, lambda: DenoisedGuide(maker.guide(run), self._calls.units))

    def _pair(self, x: Tensor, sigma: Any, cond: Any, uncond: Any, more: dict[str, Any]) -> tuple[Tensor, Tensor]:
        if not self._batched:
            return self._denoiser(x, sigma, cond=cond, **more), self._denoiser(x, sigma, cond=uncond, **more)
        twice = torch.cat([sigma, sigma]) if isinstance(sigma, Tensor) and sigma.ndim else sigma
        both = self._denoiser(torch.cat([x, x]), twice, cond=joined(uncond, cond, len(x)), **more)
        _require_denoised(both, torch.Size((2 * len(x), *x.shape[1:])))
        unconditional, conditional = both.chunk(2)
        return conditional, unconditional


def _require_scale(cond_scale: Any, x: Tensor) -> None:
    """Raises an error for what is no guidance scale."""
    if isinstance(cond_scale, Tensor) and (cond_scale.ndim != 1 or len(cond_scale) in (1, len(x))):
        return
    if not isinstance(cond_scale, Real):
        given = f"{len(cond_scale)} for {len(x)} samples" if isinstance(cond_scale, Tensor) else repr(cond_scale)
        raise PlanError(f"cond_scale must be a number such as 7.0, or a tensor with one for each sample, not {given}")


def _require_denoised(output: Any, shape: torch.Size) -> None:
    """Raises an error for what is no denoised latents."""
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if found != tuple(shape):
        raise PlanError(
            f"the denoiser returned {found} for latents of the shape {tuple(shape)}; it must return the denoised "
            "latents alone, as denoiser(x, sigma, cond=...) of k-diffusion does"
        )


def _combined(conditional: Tensor, unconditional: Tensor, cond_scale: Any) -> Tensor:
    """Classifier-free guidance."""
    if isinstance(cond_scale, Tensor) and cond_scale.ndim == 1:  # one for each sample
        cond_scale = cond_scale.reshape(-1, *[1] * (conditional.ndim - 1))
    output: Tensor = unconditional + (conditional - unconditional) * cond_scale
    return output


# -- predictions, in the space of the network's outputs
#
# Denoised latents (x0), and the difference of two of them, shrink with the noise level for any network; its outputs
# (noise, velocity) are smooth, and predictions of them 3 to 10 dB better.


class DenoisedLeaps:
    """The denoised latents at each call of a run in which the whole network leaps."""

    def __init__(self, leaps: Leaps, run: RunInfo) -> None:
        self.leaps = leaps
        self._run = run

    @property
    def plan(self) -> Plan:
        return self.leaps.plan

    def evaluates(self, call: int) -> bool:
        """Must the denoiser run at this call?"""
        return self.leaps.evaluates(call)

    def observe(self, call: int, x: Tensor, denoised: Tensor) -> Tensor:
        """The denoised latents to use after the denoiser has run at the state x."""
        output = (self._run.leaping(call, denoised, x),)
        used = self.leaps.observe(call, output)
        return denoised if used is output else self._run.landed(call, used[0], x).to(denoised.dtype)

    def predict(self, call: int, x: Tensor) -> Tensor:
        """The denoised latents to use at the state x if the denoiser does not run."""
        return self._run.landed(call, self.leaps.predict(call)[0], x).to(x.dtype)

    def estimated_error(self, final: Tensor) -> Tensor | None:
        """How far the final latents are from those of the plain run, per row."""
        return self.leaps.estimated_error(final)


class DenoisedGuide:
    """Provides a denoiser's unconditional output at each call, with the help of a guide."""

    def __init__(self, guide: Guide, units: Sequence[float]) -> None:
        self.guide = guide
        self._units = units

    @property
    def plan(self) -> Plan | None:
        return self.guide.plan

    def evaluates(self, call: int) -> bool:
        """Must the unconditional branch run at this call?"""
        return self.guide.evaluates(call)

    def observe(self, call: int, conditional: Tensor, unconditional: Tensor) -> Tensor:
        """The unconditional output to use after both branches have run."""
        unit = self._units[call]
        used = self.guide.observe(call, (conditional,), ((conditional - unconditional) / unit,))
        return unconditional if used is None else conditional - unit * used[0]

    def predict(self, call: int, conditional: Tensor) -> Tensor:
        """The unconditional output to use after the conditional branch alone has run."""
        term = self.guide.predict(call, (conditional,))
        return conditional if term is None else conditional - self._units[call] * term[0]

    def estimated_error(self, final: Tensor) -> Tensor | None:
        """How far the final latents are from those of plain guidance, per row; None if it cannot be estimated."""
        return self.guide.estimated_error(final) if isinstance(self.guide, HareGuide) else None


# -- one run of a sampler


class _Run:
    """One run of a sampler, call by call."""

    def __init__(self, calls: Calls, guide: Callable[[], DenoisedGuide | DenoisedLeaps]) -> None:
        self.call = -1
        self._calls, self._make = calls, guide
        self._guide: DenoisedGuide | DenoisedLeaps | None = guide()
        self._subject: tuple[Any, ...] = ()  # the conditions and the shape of the latents
        self._evaluations: list[int] = []
        self._plain_evaluations = 0
        self._note = ""
        self._error: Tensor | None = None  # the estimate, per sample
        self._tuned = self._guide.leaps.tuned if isinstance(self._guide, DenoisedLeaps) else ""
        self._completed: Leaps | None = None  # the leaps of a run that has come to its end
        self._plan = self._guide.plan
        self._started = self._ended = time.perf_counter()

    def expects(self, level: float) -> bool:
        """Is the next call at this noise level?"""
        following = self.call + 1
        return following < len(self._calls.sigmas) and _same(level, self._calls.sigmas[following])

    @property
    def finished(self) -> bool:
        return not self._note and len(self._evaluations) == len(self._calls.sigmas)

    def arrived(self, level: float) -> None:
        if self._guide is not None and not self.expects(level):
            self._note = (
                f"call {self.call + 1} came at sigma = {level:.4g}, which was not expected: from there on the run was "
                "plain guidance. Write GuidedDenoiser(..., sampler=) to find the sampler's calls in advance"
            )
            self._guide = None
        self.call += 1

    def guide_for(self, cond: Any, uncond: Any, shape: torch.Size) -> DenoisedGuide | DenoisedLeaps | None:
        """The guide; it starts anew when the conditions or the shape of the latents have changed."""
        subject = (cond, uncond, shape)
        changed = self._subject and not (
            self._subject[0] is cond and self._subject[1] is uncond and self._subject[2] == shape
        )
        if changed and isinstance(self._guide, DenoisedLeaps):
            self._guide.leaps.forget()
        elif changed and self._guide is not None:
            self._guide = self._make()
        self._subject = subject
        return self._guide

    def count(self, evaluations: int, plain: int, x: Tensor) -> None:
        """Counts the evaluations of a call at the state x. plain: those of the plain run."""
        self._evaluations.append(evaluations)
        self._plain_evaluations += plain
        self._ended = time.perf_counter()
        if self.finished and self._guide is not None:
            self._plan = self._guide.plan
            self._error = self._guide.estimated_error(x)
            if isinstance(self._guide, DenoisedLeaps):
                self._completed = self._guide.leaps
                self._completed.forget()
            self._guide, self._subject = None, ()  # and the terms in it

    def _reason(self) -> str:
        """Why nothing was saved."""
        plan = self._plan
        if plan is None or plan.evaluations < plan.steps:
            return ""
        if self._calls.adds_noise or self._calls.explodes:
            return f"everything was evaluated: {self._calls.no_response}"
        calls = f"everything was evaluated, as the plan has it for {plan.steps} calls of this sampler"
        return calls if plan.skips == "network" else ""

    def summary(self) -> Summary:
        to_come = max(0, len(self._calls.sigmas) - len(self._evaluations))
        doubt, lost = ("", None) if self._completed is None else (self._completed.doubt(), self._completed.lost())
        return Summary(
            pipeline="thg.GuidedDenoiser",
            steps=len(self._evaluations) + to_come,
            nfe=sum(self._evaluations),
            cfg_nfe=self._plain_evaluations + 2 * to_come,
            evaluations=tuple(self._evaluations),
            seconds=self._ended - self._started,
            plan=None if self._note else self._plan,
            finished=len(self._evaluations) >= len(self._calls.sigmas),
            note=self._note or "; ".join(filter(None, (self._reason(), doubt, self._tuned))),
            estimated_error=None if self._error is None else tuple(self._error.tolist()),
            lost=lost_in(lost),
            tuned=bool(self._tuned),
        )


# -- the calls of a sampler


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=SAME, abs_tol=1e-9)


def _log_snr(sigma: float, flow: bool) -> float:
    return Node(0.0, sigma, max(1 - sigma, 0.0) if flow else 1.0, max(sigma, 0.0)).log_snr


def _levels(sigmas: Any) -> list[float]:
    """Noise levels as numbers. Raises an error for what are none."""
    try:
        levels = [float(sigma) for sigma in (sigmas.tolist() if isinstance(sigmas, Tensor) else sigmas)]
    except (TypeError, ValueError):
        levels = []
    if len(levels) < 2 or levels[0] <= 0 or not all(map(math.isfinite, levels)):
        raise ScheduleError(
            f"sigmas must be at least two noise levels from high to low, those that the sampler gets, not {sigmas!r}"
        )
    return levels


Content = Callable[[float], tuple[float, float]]
"""a and s at a noise level: denoised latents are a x - s output."""


def _noise(sigma: float) -> tuple[float, float]:
    return 1.0, sigma


def _velocity(sigma: float) -> tuple[float, float]:
    size = math.hypot(1.0, sigma)
    return 1 / size**2, sigma / size


def _calls(sampler: Callable[..., Tensor] | None, grid: Sequence[float], content: Content) -> Calls:
    """The calls of a sampler; without one, one call at each noise level but the last."""
    if sampler is not None:
        return _traced(sampler, grid, content)
    levels = tuple(grid[:-1])
    return Calls(levels, tuple(-content(sigma)[1] for sigma in levels), no_response="the sampler is unknown")


def _traced(sampler: Callable[..., Tensor], grid: Sequence[float], content: Content) -> Calls:
    """The calls of a sampler, found by executing it on numbers. The state of the random generator is restored."""
    named = inspect.signature(sampler).parameters
    quiet = {"disable": True} if "disable" in named else {}
    sigmas = torch.tensor(grid, dtype=torch.float32)

    def on_numbers(start: Tensor, answer: Answer) -> Tensor:
        def model(x: Tensor, sigma: Any, **_: Any) -> Tensor:
            level = torch.as_tensor(sigma, dtype=x.dtype).reshape(-1)[0]
            a, s = content(float(level))
            return a * x - s * answer(x, level)

        try:
            final = sampler(model, start, sigmas, **quiet)
        except THGError:
            raise
        except Exception as error:
            raise ScheduleError(
                f"the sampler could not be executed as sampler(model, x, sigmas) on a few numbers "
                f"({type(error).__name__}: {error}); wrap it in a function with these arguments"
            ) from error
        if not isinstance(final, Tensor):
            raise ScheduleError(f"the sampler must return the final latents, not {type(final).__name__}")
        return final

    with torch.random.fork_rng(devices=[]):
        return trace(on_numbers, lambda sigma: -content(sigma)[1])
