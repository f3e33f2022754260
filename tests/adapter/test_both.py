"""Leaps of both branches on tiny pipelines, batched and with two calls, and on a shipped model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import EulerAncestralDiscreteScheduler

import thg
from tests.adapter.families import FAMILIES, Case, Rows
from tests.adapter.programs import deepcache
from thg.media import psnr
from thg.models import DEFAULT_CALL, DEFAULT_GUIDANCE

STEPS = 12
PLAN = thg.uniform(every=6)


@pytest.mark.parametrize("name", ["SD 1.5", "SD3", "Z-Image", "CogVideoX", "Qwen-Image", "Wan 2.1"])
def test_the_network_runs_where_it_should_and_the_report_says_so(name: str) -> None:
    case = FAMILIES[name]()
    with thg.enabled(case.pipe, thg.leap_both(PLAN, every=4)), Rows(case) as counted:
        first = case.run(steps=STEPS)
        report = thg.summary(case.pipe)
        assert torch.equal(case.run(steps=STEPS), first)
    assert report.evaluations == (2, 1, 1, 1, 1, 0, 2, 0, 1, 1, 1, 1)
    assert report.cfg_nfe == 2 * STEPS
    assert counted.rows == 2 * report.nfe
    with thg.enabled(case.pipe, thg.leap_both(PLAN, every=1)):
        every_step = case.run(steps=STEPS)
    with thg.enabled(case.pipe, PLAN):
        assert torch.equal(case.run(steps=STEPS), every_step)


def test_a_third_branch_runs_at_each_step() -> None:
    """Perturbed-attention guidance needs its branch; nothing predicts it."""
    case = FAMILIES["SD PAG"]()
    with thg.enabled(case.pipe, thg.leap_both(PLAN, every=4)):
        leap = case.run(steps=STEPS)
    with thg.enabled(case.pipe, PLAN):
        assert torch.equal(case.run(steps=STEPS), leap)


def test_noise_and_caches_are_refused() -> None:
    case = FAMILIES["SD 1.5"]()
    thg.enable(case.pipe, thg.leap_both(PLAN))
    case.run(steps=STEPS)
    with deepcache(case):
        case.run(steps=STEPS)
        report = thg.summary(case.pipe)
    assert "leap_both skips whole steps" in report.note
    assert report.nfe == report.cfg_nfe
    case.pipe.scheduler = EulerAncestralDiscreteScheduler()
    with pytest.raises(thg.PlanError, match="adds noise"):
        case.run(steps=STEPS)


@pytest.mark.parametrize("model", ["eps", "flow"])
def test_closer_to_cfg_than_fewer_steps_of_the_same_cost(model: Any) -> None:
    pipe: Any = thg.shipped_pipeline(model)
    pipe.set_progress_bar_config(disable=True)

    def run(steps: int = 50) -> Any:
        more: dict[str, Any] = {"guidance_scale": DEFAULT_GUIDANCE[model], **DEFAULT_CALL[model]}
        noise = [torch.Generator().manual_seed(seed) for seed in range(2)]
        prompts = ["a dark ankle boot", "a light dress"]
        return pipe(prompts, num_inference_steps=steps, generator=noise, output_type="np", **more).images

    plain = run()
    with thg.enabled(pipe, thg.leap_both(thg.tapered(0.65), every=4)):
        ours = run()
        cost = thg.summary(pipe).nfe
    fewer = run(-(-cost // 2))
    assert cost <= 0.45 * 100
    assert psnr(ours, plain) > psnr(fewer, plain) + 1
    assert np.isfinite(ours).all()


def test_the_template_is_released() -> None:
    case: Case = FAMILIES["SD 1.5"]()
    thg.enable(case.pipe, thg.leap_both(PLAN, every=4))
    case.run(steps=STEPS)
    (section,) = thg.adapter.patch.takeover_of(case.pipe)._last.sections  # type: ignore[attr-defined]
    assert section.template is None
