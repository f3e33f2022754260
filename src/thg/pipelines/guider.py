"""The guider for Modular Diffusers and for pipelines that take a guider: classifier-free guidance that leaps.

    pipe.update_components(guider=thg.TortoiseHareGuidance(7.5, scheduler=pipe.scheduler))

A denoising loop asks its guider for the batches of a step, runs the network on each, and passes the outputs back. At a
skipped step there is no batch, and `forward` returns a prediction; a plan of the guidance term leaves out the
unconditional batch, and `forward` predicts its output from the conditional one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from diffusers.guiders import ClassifierFreeGuidance
from diffusers.guiders.guider_utils import GuiderOutput

from thg.errors import PlanError
from thg.pipelines.calls import at_least_float32, difference, unconditional
from thg.pipelines.describe import describe
from thg.plans.guide import Guide
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan
from thg.plans.planners import Choice, Planned, Tapered, Uniform, guide_maker, tapered, uniform
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import Within, within

_STORED: dict[str, tuple[type[Any], Callable[..., Choice]]] = {
    "within": (Within, within),
    "tapered": (Tapered, tapered),
    "uniform": (Uniform, uniform),
}


class TortoiseHareGuidance(ClassifierFreeGuidance):  # type: ignore[misc]
    """Classifier-free guidance that evaluates the network at some of the steps.

    guidance_scale, guidance_rescale, use_original_formulation, start, stop, enabled: as in `ClassifierFreeGuidance`.
    plan: as for `thg.enable`, with the same default, `thg.within(0.01)`.
    nfe, hare_order: short for `plan=thg.uniform(nfe=nfe, hare_order=hare_order)`.
    scheduler: the pipeline's scheduler, which a plan for the whole network needs, and the corrector; diffusers does not
        pass it to guiders. It is not part of the guider's configuration. Without it a plan for the whole network
        evaluates everything.
    """

    def __init__(
        self,
        guidance_scale: float = 7.5,
        guidance_rescale: float = 0.0,
        use_original_formulation: bool = False,
        start: float = 0.0,
        stop: float = 1.0,
        enabled: bool = True,
        nfe: float | None = None,
        hare_order: int = 2,
        plan: Choice | dict[str, Any] = None,
        scheduler: Any = None,
    ) -> None:
        super().__init__(
            guidance_scale=guidance_scale,
            guidance_rescale=guidance_rescale,
            use_original_formulation=use_original_formulation,
            start=start,
            stop=stop,
            enabled=enabled,
        )
        if plan is None and nfe is not None:
            plan = uniform(nfe=nfe, hare_order=hare_order)
        chosen = _loaded(plan) if isinstance(plan, dict) else plan
        self._maker = guide_maker(chosen)
        self.register_to_config(nfe=None, hare_order=hare_order, plan=_stored(chosen))
        self._scheduler = scheduler
        self._guide: Guide | None = None  # of the current run: this, or the leaps of the whole network
        self._leaps: Leaps | None = None
        self._guided = True  # at the last step
        self._conditions = 2  # of this step
        self._dtype = torch.float32  # of the last output

    def set_state(self, step: int, num_inference_steps: int, timestep: torch.Tensor) -> None:
        if step == 0 or self._step is None or step < self._step or (self._guide is None and self._leaps is None):
            run = self._described(num_inference_steps)
            if isinstance(self._maker, Planned) and self._maker.skips == "network":
                unknown = self._scheduler is None  # it may add noise, which cannot be predicted
                self._leaps, self._guide = self._maker.leaps(replace(run, adds_noise=run.adds_noise or unknown)), None
            else:
                self._leaps, self._guide = None, self._maker.guide(run)
        super().set_state(step, num_inference_steps, timestep)
        guided = self._is_cfg_enabled()
        if self._leaps is not None and guided != self._guided:
            self._leaps.forget()  # another output from here on
        self._guided, self._conditions = guided, 2 if guided else 1
        if self._leaps is not None and not self._leaps.evaluates(step):
            self._conditions = 0
        elif self._guide is not None and guided and not self._guide.evaluates(step):
            self._conditions = 1

    def _described(self, steps: int) -> RunInfo:
        """The description of a run with this number of steps: the last ones of the scheduler, as in image to image."""
        timesteps = getattr(self._scheduler, "timesteps", ())
        if len(timesteps) < steps:
            return RunInfo.of(steps, self.guidance_scale)
        return replace(describe(self._scheduler, timesteps[-steps:]), guidance_scale=self.guidance_scale)

    @property
    def num_conditions(self) -> int:
        return self._conditions

    def prepare_inputs(self, data: Any) -> Any:
        return super().prepare_inputs(data) if self._conditions else []

    def prepare_inputs_from_block_state(self, data: Any, input_fields: Any) -> Any:
        return super().prepare_inputs_from_block_state(data, input_fields) if self._conditions else []

    def forward(self, pred_cond: torch.Tensor | None = None, pred_uncond: torch.Tensor | None = None) -> Any:
        if self._guide is None and self._leaps is None:
            raise PlanError("set_state must be called before the guider, as diffusers' denoising loops do")
        try:
            return self._evaluated_or_predicted(pred_cond, pred_uncond)
        finally:
            if self._step == self._num_inference_steps - 1:
                self._guide = self._leaps = None  # the run is over: free its tensors

    def _evaluated_or_predicted(self, pred_cond: torch.Tensor | None, pred_uncond: torch.Tensor | None) -> Any:
        leaps, guide, step = self._leaps, self._guide, self._step
        if leaps is not None and pred_cond is None:
            (predicted,) = leaps.predict(step)
            return GuiderOutput(pred=predicted.to(self._dtype), pred_cond=None, pred_uncond=None)
        assert pred_cond is not None
        if guide is not None and self._is_cfg_enabled():
            conditional = (pred_cond,)
            if pred_uncond is None:
                (pred_uncond,) = unconditional(conditional, guide.predict(step, conditional))
            else:
                used = guide.observe(step, conditional, difference(conditional, (pred_uncond,)))
                if used is not None:
                    (pred_uncond,) = unconditional(conditional, used)
        output = super().forward(pred_cond, pred_uncond)
        if leaps is not None:
            self._dtype = output.pred.dtype
            (corrected,) = leaps.observe(step, (at_least_float32(output.pred.clone()),))
            output.pred = corrected.to(self._dtype)
        return output


def _stored(chosen: Any) -> Any:
    """A choice as it is kept in the configuration."""
    if isinstance(chosen, Plan):
        return chosen.to_dict()
    for name, (kind, _) in _STORED.items():
        if isinstance(chosen, kind):
            return {"planner": name, **asdict(chosen)}
    return chosen if chosen is None or isinstance(chosen, str | float) else {"planner": type(chosen).__name__}


def _loaded(stored: dict[str, Any]) -> Choice:
    """A choice from the configuration."""
    if "planner" not in stored:
        return Plan.from_dict(stored)
    options = dict(stored)
    name = options.pop("planner")
    if name not in _STORED:
        raise PlanError(f"a {name} cannot be loaded from a guider's configuration; pass it again as plan=")
    return _STORED[name][1](**options)
