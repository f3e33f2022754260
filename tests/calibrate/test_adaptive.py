"""The adaptive planner: its two limits, and what it does in between."""

import pytest
import torch

import thg
from tests.calibrate.pipelines import PROMPTS, stable_diffusion
from thg.plans.guide import Run


def evaluations(tolerance, terms, order=2):
    """The steps at which a guide evaluates, for guidance terms that are known."""
    guide = thg.adaptive(tolerance, hare_order=order).guide(Run.of(len(terms), 2.0))
    conditional = (torch.ones(1, 1),)
    for step, term in enumerate(terms):
        if guide.evaluates(step):
            guide.observe(step, conditional, (torch.full((1, 1), float(term)),))
        else:
            guide.predict(step, conditional)
    return guide.plan.coarse


def test_a_line_needs_few_evaluations_and_a_jump_more():
    line = [0.1 * i for i in range(30)]
    smooth = evaluations(0.02, line)
    assert len(smooth) < 10
    jump = [*line[:15], *(v + 5 for v in line[15:])]
    after = [i for i in evaluations(0.02, jump) if i >= 15]
    assert len(after) > len([i for i in smooth if i >= 15])


def test_a_tighter_tolerance_evaluates_more():
    curve = [(i / 10) ** 3 for i in range(30)]
    counts = [len(evaluations(t, curve)) for t in (1.0, 0.1, 0.01, 1e-9)]
    assert counts == sorted(counts)
    assert counts[-1] == 30


def test_in_a_pipeline_it_reports_what_it_did():
    pipe = stable_diffusion()
    with thg.enabled(pipe, thg.adaptive(0.5)):
        pipe(PROMPTS[0], num_inference_steps=8, guidance_scale=4.0, output_type="latent")
        summary = thg.summary(pipe)
    assert summary.plan is not None
    assert summary.nfe == summary.plan.nfe < 16


@pytest.mark.parametrize(("arguments", "message"), [((0.0,), "tolerance must be above 0"), ((-1,), "above 0")])
def test_bad_input(arguments, message):
    with pytest.raises(thg.PlanError, match=message):
        thg.adaptive(*arguments)
