"""Five promises on every family of pipelines, each counted in rows that really reach the network.

full     a plan that evaluates everything is plain CFG
leap     `every=2` evaluates half of the unconditional rows, and says so
again    a second run is the first one, bit for bit
broken   a run that raises in the middle leaves nothing behind
undo     after `disable` the pipeline is what it was
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import thg
from tests.pipelines.families import FAMILIES, STEPS, Broken, Case, Rows
from tests.pipelines.families.stable_diffusion import CONTROL_SCALES
from thg.pipelines.layouts import Batched

LEAP = thg.uniform(every=2)
# inputs of a network that differ from run to run even where the same branch is evaluated
DEPENDS_ON_LATENTS = (
    ".0",
    ".sample",
    ".hidden_states",
    ".down_block_additional",
    ".mid_block_additional",
    ".block_controlnet_hidden_states",
)


class Outcome(NamedTuple):
    output: Tensor
    rows: int


class Subject:
    """A family's pipeline, and the runs that several tests look at."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def run(self, **arguments: Any) -> Outcome:
        with Rows(self.case) as counted:
            output = self.case.run(**arguments)
        return Outcome(output, counted.rows)

    @cached_property
    def plain(self) -> Outcome:
        return self.run()

    @cached_property
    def unguided(self) -> Outcome:
        return self.run(guided=False)

    @cached_property
    def leap(self) -> Outcome:
        with thg.enabled(self.case.pipe, LEAP):
            outcome = self.run()
            self.layout = thg.summary(self.case.pipe).layout
        return outcome


@pytest.fixture(scope="module", params=FAMILIES)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(FAMILIES[request.param]())


@pytest.fixture(autouse=True)
def disabled(subject: Subject):
    """No test hands an enabled pipeline to the next, not even one that fails."""
    yield
    thg.disable(subject.case.pipe)


def same(a: Outcome, b: Outcome) -> bool:
    return torch.equal(a.output, b.output) and a.rows == b.rows


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((a - b).abs().max() / b.abs().max())


def test_full_plan_is_plain_cfg(subject):
    with thg.enabled(subject.case.pipe, thg.uniform(every=1)):
        full = subject.run()
        summary = thg.summary(subject.case.pipe)
    assert same(full, subject.plain)
    assert summary.nfe == summary.cfg_nfe == full.rows


def test_leap_evaluates_half_of_the_unconditional_rows(subject):
    leap = subject.leap
    unconditional = subject.plain.rows - subject.unguided.rows
    assert unconditional > 0
    assert 0.4 <= (leap.rows - subject.unguided.rows) / unconditional <= 0.75
    assert torch.isfinite(leap.output).all()
    assert distance(leap.output, subject.plain.output) > 1e-4


def test_leap_evaluates_the_conditional_branch(subject):
    """At a step that leaves the unconditional branch out, the network is asked what it is asked without guidance."""
    case = subject.case
    assert subject.leap.rows < subject.plain.rows
    calls = 1 if isinstance(subject.layout, Batched) else 2  # of a step with both branches
    with Rows(case, stop_at=2) as unguided, pytest.raises(Broken):
        case.run(guided=False)
    with thg.enabled(case.pipe, LEAP), Rows(case, stop_at=calls + 1) as leap, pytest.raises(Broken):
        case.run()
    assert leap.last.keys() == unguided.last.keys()
    for name, asked in leap.last.items():
        assert asked.shape == unguided.last[name].shape, name
        if not name.startswith(DEPENDS_ON_LATENTS):
            assert torch.allclose(asked.float(), unguided.last[name].float(), rtol=1e-4, atol=1e-5), name


def test_second_run_is_the_first_one_and_the_summary_says_what_it_cost(subject):
    pipe = subject.case.pipe
    with thg.enabled(pipe, LEAP):
        first, second = subject.run(), subject.run()
        summary = thg.summary(pipe)
    assert same(first, subject.leap)
    assert same(second, first)
    assert summary.finished
    assert summary.note == ""
    assert summary.nfe == sum(summary.evaluations) == second.rows
    assert summary.cfg_nfe == subject.plain.rows
    assert summary.steps == summary.plan.steps
    assert summary.nfe == expected_nfe(pipe, summary.layout, summary.plan)


def expected_nfe(pipe: Any, layout: Any, plan: thg.Plan) -> int:
    branches = len(layout.at_present(pipe).branches) if isinstance(layout, Batched) else 2
    if branches == 2:
        return plan.nfe
    predicted = len(layout.predicted)
    return plan.steps * (branches - predicted) + plan.evaluations * predicted


def test_run_that_raises_leaves_nothing_behind(subject):
    pipe = subject.case.pipe
    with thg.enabled(pipe, LEAP):
        with pytest.raises(Broken), Rows(subject.case, stop_at=2):
            subject.case.run()
        assert not thg.summary(pipe).finished
        assert same(subject.run(), subject.leap)


def test_disable_gives_the_pipeline_back(subject):
    plain, pipe = subject.plain, subject.case.pipe
    networks = {name: getattr(pipe, name) for name in subject.case.networks}
    before = {name: type(network) for name, network in networks.items()}
    pipeline_class = type(pipe)
    thg.enable(pipe, LEAP)
    thg.disable(pipe)
    assert {name: type(network) for name, network in networks.items()} == before
    assert type(pipe) is pipeline_class
    assert same(subject.run(), plain)


def test_guidance_off_passes_through_and_the_summary_says_so(subject):
    with thg.enabled(subject.case.pipe, LEAP):
        off = subject.run(guided=False)
        summary = thg.summary(subject.case.pipe)
    assert same(off, subject.unguided)
    assert "guidance was off" in summary.note
    assert summary.plan is None
    assert summary.nfe == summary.cfg_nfe


@pytest.mark.parametrize(
    "subject",
    ["SD 1.5", "SDXL", "SD ControlNet", "SD PAG", "SD3", "Flux with true CFG", "Z-Image", "DiT", "AnimateDiff"],
    indirect=True,
)
def test_two_prompts_give_what_each_gives_alone(subject):
    first = subject.leap
    with thg.enabled(subject.case.pipe, LEAP):
        both = subject.run(prompts=(0, 1), seeds=(0, 1))
        assert thg.summary(subject.case.pipe).nfe == both.rows / 2 == first.rows
        second = subject.run(prompts=(1,), seeds=(1,))
    assert distance(both.output, torch.cat([first.output, second.output])) < 1e-4


@pytest.mark.parametrize(
    "subject",
    ["SD 1.5", "SDXL", "SD ControlNet", "SD IP-Adapter", "Flux with true CFG", "Z-Image", "Wan 2.1", "AudioLDM 2"],
    indirect=True,
)
def test_two_samples_of_a_prompt_are_those_of_two_runs(subject):
    first = subject.leap
    with thg.enabled(subject.case.pipe, LEAP):
        both = subject.run(prompts=(0,), seeds=(0, 1))
        assert thg.summary(subject.case.pipe).nfe == both.rows / 2 == first.rows
        second = subject.run(prompts=(0,), seeds=(1,))
    assert distance(both.output, torch.cat([first.output, second.output])) < 1e-4


@pytest.mark.parametrize("subject", ["SD ControlNet"], indirect=True)
def test_controlnet_leaves_out_its_unconditional_half_too(subject):
    case = subject.case
    with thg.enabled(case.pipe, LEAP), Rows(case, networks=["controlnet"]) as counted:
        output = case.run()
    assert counted.rows == subject.leap.rows
    assert torch.equal(output, subject.leap.output)


@pytest.mark.parametrize(
    "subject", ["SD with two ControlNets", "SDXL with two ControlNets", "SD3 with two ControlNets"], indirect=True
)
def test_each_of_two_controlnets_runs_with_its_own_scale(subject):
    case = subject.case
    seen: list[list[tuple[float, int]]] = [[], []]
    undo = [
        net.register_forward_pre_hook(
            lambda _, args, kwargs, own=own: own.append((kwargs["conditioning_scale"], len(kwargs["controlnet_cond"]))),
            with_kwargs=True,
        )
        for net, own in zip(case.pipe.controlnet.nets, seen, strict=True)
    ]
    try:
        with thg.enabled(case.pipe, LEAP):
            case.run()
    finally:
        for handle in undo:
            handle.remove()
    assert seen == [[(scale, rows) for rows in (2, 1, 2, 1, 2, 1)] for scale in CONTROL_SCALES]


@pytest.mark.parametrize("subject", ["HunyuanVideo 1.5"], indirect=True)
def test_guider_of_thg_does_what_enable_does(subject):
    pipe = subject.case.pipe
    before = pipe.guider
    pipe.guider = thg.TortoiseHareGuidance(before.guidance_scale, plan=thg.Plan(STEPS, range(0, STEPS, 2)))
    try:
        assert same(subject.run(), subject.leap)
    finally:
        pipe.guider = before


@pytest.mark.parametrize("subject", ["Wan 2.2"], indirect=True)
def test_both_experts_run(subject):
    for expert in subject.case.networks:
        with thg.enabled(subject.case.pipe, LEAP), Rows(subject.case, networks=[expert]) as counted:
            subject.case.run()
        assert 0 < counted.rows < subject.leap.rows
