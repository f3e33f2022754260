"""The guider for Modular Diffusers and for pipelines that take a guider: classifier-free guidance with a hare.

    pipe.update_components(guider=thg.TortoiseHareGuidance(7.5, nfe=0.65, scheduler=pipe.scheduler))

`num_conditions` decides whether the unconditional batch is prepared at a step; if not, `forward` predicts the
unconditional output from the conditional one.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from diffusers.guiders import ClassifierFreeGuidance

from thg.adapter.caches import Caches, caches_for
from thg.adapter.describe import describe
from thg.adapter.outputs import difference, unconditional
from thg.errors import PlanError
from thg.plans.guide import Guide
from thg.plans.plan import Plan
from thg.plans.planners import guide_maker, uniform
from thg.plans.run import Run


class TortoiseHareGuidance(ClassifierFreeGuidance):  # type: ignore[misc]
    """Classifier-free guidance that evaluates the unconditional branch on a coarse grid of steps.

    guidance_scale, guidance_rescale, use_original_formulation, start, stop, enabled: as in `ClassifierFreeGuidance`.
    nfe, hare_order: the grid of `thg.tapered` with this share (or number) of CFG's evaluations.
    plan: instead of them a `thg.Plan`, its dictionary, or the name of a preset.
    scheduler: the pipeline's scheduler, which the corrector needs; diffusers does not pass it to guiders. It is not
        part of the guider's configuration.
    """

    def __init__(
        self,
        guidance_scale: float = 7.5,
        guidance_rescale: float = 0.0,
        use_original_formulation: bool = False,
        start: float = 0.0,
        stop: float = 1.0,
        enabled: bool = True,
        nfe: float = 0.65,
        hare_order: int = 2,
        plan: Plan | dict[str, Any] | str | None = None,
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
        if isinstance(plan, dict):
            plan = Plan.from_dict(plan)
        self._maker = guide_maker(plan if plan is not None else uniform(nfe=nfe, hare_order=hare_order))
        self.register_to_config(nfe=nfe, hare_order=hare_order, plan=plan.to_dict() if isinstance(plan, Plan) else plan)
        self._scheduler = scheduler
        self._guide: Guide | None = None
        self._evaluates = True
        self._caches: dict[int, Caches] = {}  # inside the networks of the current run
        self._call = ExitStack()  # the network call in progress, as its caches see it

    def set_state(self, step: int, num_inference_steps: int, timestep: torch.Tensor) -> None:
        if self._guide is None or step == 0 or self._step is None or step < self._step:
            self._guide = self._maker.guide(self._described(num_inference_steps))
            self._call.close()
            self._caches.clear()
        super().set_state(step, num_inference_steps, timestep)
        self._evaluates = not self._is_cfg_enabled() or self._guide.evaluates(step)

    def _described(self, steps: int) -> Run:
        """The description of a run with this number of steps: the last ones of the scheduler, as in image to image."""
        timesteps = getattr(self._scheduler, "timesteps", ())
        if len(timesteps) < steps:
            return Run.of(steps, self.guidance_scale)
        return replace(describe(self._scheduler, timesteps[-steps:]), guidance_scale=self.guidance_scale)

    @property
    def num_conditions(self) -> int:
        return int(super().num_conditions) if self._evaluates else 1

    def prepare_models(self, denoiser: torch.nn.Module) -> None:
        super().prepare_models(denoiser)
        self._call.close()
        if self._guide is None:
            return
        if id(denoiser) not in self._caches:
            self._caches[id(denoiser)] = caches_for(denoiser, self._guide)
        caches = self._caches[id(denoiser)]
        refresh = self._is_cfg_enabled() and self._evaluates
        self._call.enter_context(caches.conditional(refresh) if self.is_conditional else caches.unconditional())

    def cleanup_models(self, denoiser: torch.nn.Module) -> None:
        self._call.close()
        super().cleanup_models(denoiser)

    def forward(self, pred_cond: torch.Tensor, pred_uncond: torch.Tensor | None = None) -> Any:
        guide, step = self._guide, self._step
        if self._is_cfg_enabled():
            if guide is None:
                raise PlanError("set_state must be called before the guider, as diffusers' denoising loops do")
            conditional = (pred_cond,)
            if pred_uncond is None:
                (pred_uncond,) = unconditional(conditional, guide.predict(step, conditional))
            else:
                used = guide.observe(step, conditional, difference(conditional, (pred_uncond,)))
                if used is not None:
                    (pred_uncond,) = unconditional(conditional, used)
        if step is not None and step == self._num_inference_steps - 1:
            self._guide = None  # the run is over: free its tensors
            for caches in self._caches.values():
                caches.empty()
            self._caches.clear()
        return super().forward(pred_cond, pred_uncond)
