"""The rivals: exact budgets, formulas against independent implementations, and what they evaluate in real runs."""

import math

import pytest
import torch

pytest.importorskip("diffusers", reason="the rivals run on diffusers pipelines")

from diffusers.hooks import FasterCacheConfig, apply_faster_cache
from hypothesis import given
from hypothesis import strategies as st

import thg
from tests.calibrate.pipelines import PROMPTS, stable_diffusion, stable_diffusion_3
from tests.pipelines.families.video import cogvideox
from thg.bench.methods import as_policy, citation, methods
from thg.bench.methods.baselines import (
    AdaptiveGuidance,
    AdaptiveGuide,
    CFGCache,
    CFGCacheFFT,
    CFGGate,
    GuidanceInterval,
    SelectiveGuidance,
    StepAG,
    find_threshold,
    weigh_frequencies,
)
from thg.bench.methods.policy import Pilot, PlainCFG
from thg.bench.methods.thg_plans import PaperPlan, Profiled, TaperedPolicy
from thg.bench.methods.third_party import CacheDiT, CacheError, DeepCache, FasterCache
from thg.bench.tables import ConfigError
from thg.errors import PlanError, UnsupportedPipelineError
from thg.plans.guide import HareGuide
from thg.plans.run_info import RunInfo
from thg.sampling import counted_work

pytestmark = pytest.mark.filterwarnings("ignore:torch.meshgrid")  # in FasterCache of diffusers

STEPS = 10


@pytest.fixture(scope="module")
def pipe():
    return stable_diffusion()


def sample(pipe, indices=(0, 1), steps=STEPS, guidance_scale=5.0, **more):
    """Latents of some prompts, each with a seed of its own."""
    return pipe(
        prompt=[PROMPTS[i] for i in indices],
        generator=[torch.Generator().manual_seed(i) for i in indices],
        num_inference_steps=steps,
        guidance_scale=guidance_scale,
        output_type="latent",
        **more,
    ).images


def sample_under(pipe, method, prepared=None, **more):
    """Latents and evaluations of each sample."""
    with as_policy(method, STEPS).applied(pipe, prepared or {}) as evaluations:
        latents = sample(pipe, **more)
        return latents, evaluations(len(latents))


# -- budgets


@given(st.integers(1, 80), st.data())
def test_every_budget_within_reach_is_met_exactly(steps, data):
    count = data.draw(st.integers(math.ceil(steps / 5), steps))
    run = RunInfo.of(steps)
    assert CFGCache(steps + count).plan(run).nfe == steps + count
    assert CFGCacheFFT(steps + count).guide(run).plan.nfe == steps + count
    assert SelectiveGuidance(steps + count).plan(run).nfe == steps + count
    assert GuidanceInterval(steps + count, start=0.0).plan(run).nfe == steps + count


def test_budgets_out_of_reach_are_errors_that_say_what_to_write():
    with pytest.raises(PlanError, match="nfe=60 or a longer interval"):
        CFGCache(nfe=55).plan(RunInfo.of(50))
    with pytest.raises(PlanError, match=r"write start=0.60 or less"):
        GuidanceInterval(nfe=70, start=0.9).plan(RunInfo.of(50))
    for policy in (CFGCache(50), SelectiveGuidance(101), GuidanceInterval(50)):
        with pytest.raises(PlanError, match="need 51 to 100"):
            policy.plan(RunInfo.of(50))


@pytest.mark.parametrize(
    "policy",
    [
        CFGCache(14),
        CFGCacheFFT(14),
        SelectiveGuidance(14),
        GuidanceInterval(14),
        thg.uniform(nfe=14),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_a_real_run_costs_exactly_the_budget(pipe, policy):
    assert as_policy(policy, STEPS).budget(STEPS, 5.0) == 14
    _, evaluations = sample_under(pipe, policy)
    assert evaluations == [14.0, 14.0]


def test_plain_cfg_is_the_pipeline_as_it_is(pipe):
    latents, evaluations = sample_under(pipe, PlainCFG())
    assert torch.equal(latents, sample(pipe))
    assert evaluations == [2 * STEPS] * 2
    assert sample_under(pipe, PlainCFG(), steps=7)[1] == [14.0, 14.0]


# -- formulas


def test_cfg_cache_is_the_held_difference_and_evaluates_in_a_warm_up_and_then_every_fifth_step():
    assert CFGCache(70).plan(RunInfo.of(50)).coarse == (*range(13), *range(15, 50, 5))


class Denoiser(torch.nn.Module):
    """A network whose branches differ, with the argument names that FasterCache looks for."""

    def forward(self, hidden_states, encoder_hidden_states):
        shift = encoder_hidden_states.view(-1, *[1] * (hidden_states.ndim - 1))
        return (torch.tanh(hidden_states * (1 + shift)) + 0.3 * shift.sin() * hidden_states.flip(-1),)


@pytest.mark.parametrize(
    ("layout", "shape"), [("BCHW", (2, 4, 12, 10)), ("BCFHW", (2, 4, 3, 12, 10)), ("BFCHW", (2, 3, 4, 12, 10))]
)
def test_frequency_enhancement_equals_that_of_diffusers(layout, shape):
    """Step by step against diffusers' own hook, with the same weights at the same steps."""
    torch.manual_seed(0)
    steps, states = 12, [torch.randn(shape) for _ in range(12)]
    shifts = torch.tensor([0.0, 0.0, 1.0, 2.0])  # unconditional rows first
    policy = CFGCacheFFT(nfe=steps + 3, interval=5)
    now = {"step": 0}
    config = FasterCacheConfig(
        tensor_format=layout,
        unconditional_batch_skip_range=5,
        unconditional_batch_timestep_skip_range=(-1, 1000),
        current_timestep_callback=lambda: 500,
        attention_weight_callback=lambda _: 0.5,
        low_frequency_weight_callback=lambda _: 1.1 if (now["step"] + 1) / steps <= 0.8 else 1.0,
        high_frequency_weight_callback=lambda _: 1.1 if (now["step"] + 1) / steps >= 0.6 else 1.0,
        _unconditional_conditional_input_kwargs_identifiers=("hidden_states", "encoder_hidden_states"),
    )
    theirs, plain = Denoiser(), Denoiser()
    apply_faster_cache(theirs, config)
    guide = policy.guide(RunInfo.of(steps))
    assert guide.plan.coarse == (0, 5, 10)  # as diffusers chooses them
    for step, state in enumerate(states):
        now["step"] = step
        both = torch.cat([state, state])
        expected = theirs(hidden_states=both, encoder_hidden_states=shifts)[0]
        e_u, e_c = plain(both, shifts)[0].chunk(2)
        if guide.evaluates(step):
            assert guide.observe(step, (e_c,), (e_c - e_u,)) is None
            ours = e_u
        else:
            ours = e_c - guide.predict(step, (e_c,))[0]
        torch.testing.assert_close(torch.cat([ours, e_c]), expected, rtol=1e-4, atol=1e-5)


def test_frequencies_are_weighed_apart():
    flat = torch.ones(1, 1, 10, 10)
    checkered = torch.tensor([[(-1.0) ** (x + y) for x in range(10)] for y in range(10)])[None, None]
    torch.testing.assert_close(weigh_frequencies(flat + checkered, 2.0, 3.0), 2 * flat + 3 * checkered)
    with pytest.raises(UnsupportedPipelineError, match="height and width"):
        weigh_frequencies(torch.ones(2, 7, 3), 1.1, 1.1)


def test_selective_guidance_equals_switching_guidance_off_in_the_pipeline(pipe):
    def switch_off(pipe, step, timestep, tensors):
        if step == 3:  # the fifth step is the first without guidance
            pipe._guidance_scale = 0.0
            tensors["prompt_embeds"] = tensors["prompt_embeds"].chunk(2)[1]
        return tensors

    expected = sample(pipe, callback_on_step_end=switch_off, callback_on_step_end_tensor_inputs=["prompt_embeds"])
    latents, _ = sample_under(pipe, SelectiveGuidance(STEPS + 4))
    torch.testing.assert_close(latents, expected, rtol=1e-4, atol=1e-5)


def test_an_interval_from_the_start_is_selective_guidance(pipe):
    interval, _ = sample_under(pipe, GuidanceInterval(14, start=0.0))
    selective, _ = sample_under(pipe, SelectiveGuidance(14))
    assert torch.equal(interval, selective)


def test_a_gate_holds_the_last_difference_of_its_first_steps():
    plan = CFGGate(STEPS + 4).plan(RunInfo.of(STEPS))
    assert plan == thg.Plan(STEPS, range(4), hare_order=1)
    guide = HareGuide(plan, RunInfo.of(STEPS))
    for step in range(4):
        assert guide.evaluates(step)
        guide.observe(step, (torch.zeros(1, 2),), (torch.full((1, 2), float(step)),))
    assert not guide.evaluates(4)
    assert torch.equal(guide.predict(9, (torch.zeros(1, 2),))[0], torch.full((1, 2), 3.0))


def test_step_ag_is_selective_guidance_by_its_name(pipe):
    assert methods()["step-ag"] is StepAG
    assert "2506.08351" in citation(StepAG)
    ours, _ = sample_under(pipe, StepAG(14))
    assert torch.equal(ours, sample_under(pipe, SelectiveGuidance(14))[0])


# -- adaptive guidance


def test_adaptive_guidance_between_its_extremes(pipe):
    never, always = AdaptiveGuidance(threshold=1.0), AdaptiveGuidance(threshold=-1.0)
    latents, evaluations = sample_under(pipe, never)
    torch.testing.assert_close(latents, sample(pipe))
    assert evaluations == [2 * STEPS] * 2
    assert sample_under(pipe, always)[1] == [STEPS + 1] * 2  # the first step is always seen
    with pytest.raises(PlanError, match="cosine"):
        AdaptiveGuidance(threshold=1.5)


def recorded_curves(pipe, indices):
    guide = AdaptiveGuide()
    with thg.enabled(pipe, guide):
        sample(pipe, indices)
    return guide.cosines


def test_adaptive_guidance_decides_for_each_sample_alone(pipe):
    curves = recorded_curves(pipe, range(5))
    middle = sorted(row[0] for row in curves)[STEPS // 2]
    policy = AdaptiveGuidance(threshold=middle)
    together, counts = sample_under(pipe, policy, indices=range(5))
    for i in range(5):
        alone, (count,) = sample_under(pipe, policy, indices=[i])
        assert count == counts[i]
        torch.testing.assert_close(alone[0], together[i], rtol=1e-4, atol=1e-5)


def test_the_threshold_search_predicts_what_runs_cost(pipe):
    runs = 0

    def run():
        nonlocal runs
        runs += 1
        sample(pipe, range(5))

    nfe = STEPS + 1
    measured = AdaptiveGuidance(nfe).prepare(Pilot(pipe, PROMPTS, STEPS, 5.0, run))
    latents, counts = sample_under(pipe, AdaptiveGuidance(nfe), measured, indices=range(5))
    assert sum(counts) / len(counts) == pytest.approx(measured["nfe_of_pilot"])
    assert abs(measured["nfe_of_pilot"] - nfe) <= 0.5
    same, _ = sample_under(pipe, AdaptiveGuidance(threshold=measured["threshold"]), indices=range(5))
    assert torch.equal(latents, same)
    assert runs == 1  # one plain run shows all thresholds


def test_the_threshold_search_finds_the_budget_or_says_that_it_cannot():
    curves = [[0.5 + 0.04 * step + 0.001 * sample for sample in range(4)] for step in range(10)]
    for nfe in range(12, 21):
        threshold, reached = find_threshold(curves, nfe)
        assert reached == nfe
        assert 0 < threshold <= 1
    with pytest.raises(PlanError, match=r"cannot meet nfe=15.*nearest threshold"):
        find_threshold([[0.5]] * 10, 15)


# -- plans from a profile


@pytest.mark.parametrize(
    ("cls", "options"), [(PaperPlan, {"rho": 1.0, "boost": 1.1, "cutoff": 8}), (Profiled, {"nfe": 14})]
)
def test_a_plan_is_measured_once_and_followed(pipe, cls, options, tmp_path):
    policy = cls(**options, calibrate=2)
    pilot = Pilot(pipe, PROMPTS, STEPS, 5.0, run=lambda: None, folder=tmp_path)
    measured = policy.prepare(pilot)
    plan = thg.Plan.from_dict(measured["plan"])
    assert sample_under(pipe, policy, measured)[1] == [plan.nfe] * 2
    assert plan.nfe == options.get("nfe", plan.nfe)
    assert policy.plan_of(measured) == plan
    with pytest.raises(ConfigError, match="more prompts than the 5"):
        cls(**options, calibrate=6).prepare(pilot)


def test_a_measured_plan_that_misses_the_budget_is_an_error(pipe, tmp_path):
    pilot = Pilot(pipe, PROMPTS, STEPS, 5.0, run=lambda: None, folder=tmp_path)
    with pytest.raises(PlanError, match="remove nfe, or change rho"):
        PaperPlan(rho=1.0, calibrate=2, nfe=99).prepare(pilot)


# -- outside programs


def pilot_of(pipe):
    return Pilot(pipe, PROMPTS, STEPS, 5.0, run=lambda: sample(pipe))


def test_work_is_counted_in_evaluations(pipe):
    with counted_work(pipe) as plain:
        sample(pipe)
    with counted_work(pipe) as half, as_policy(SelectiveGuidance(STEPS + 5), STEPS).applied(pipe, {}):
        sample(pipe)
    assert 2 * STEPS * half.count / plain.count == pytest.approx(STEPS + 5)


@pytest.mark.parametrize("program", [FasterCache(), CacheDiT()])
def test_programs_for_transformers_are_left_out_on_a_unet(pipe, program):
    with pytest.raises(CacheError, match="StableDiffusionPipeline"):
        program.prepare(pilot_of(pipe))


def test_a_program_that_is_not_installed_says_so(pipe, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "DeepCache", None)
    with pytest.raises(CacheError, match="pip install DeepCache"):
        DeepCache().prepare(pilot_of(pipe))


def test_faster_cache_of_diffusers_is_run_counted_and_removed():
    case = cogvideox()
    plain = case.run()
    program = FasterCache(tensor_format="BFCHW")
    measured = program.prepare(Pilot(case.pipe, [""], 6, 5.0, run=case.run))
    assert 6 <= measured["nfe"] < 12
    with program.applied(case.pipe, measured) as evaluations:
        assert not torch.equal(case.run(), plain)
        assert evaluations(1) == [measured["nfe"]]
    assert torch.equal(case.run(), plain)


def test_deep_cache_is_run_counted_and_removed(pipe):
    pytest.importorskip("DeepCache")
    measured = DeepCache().prepare(pilot_of(pipe))
    assert 0 < measured["nfe"] < 2 * STEPS
    before = sample(pipe)
    assert not torch.equal(sample_under(pipe, DeepCache(), measured)[0], before)
    assert torch.equal(sample(pipe), before)


def test_a_program_together_with_thg_costs_less_than_each_alone(pipe):
    pytest.importorskip("DeepCache")
    nfe = STEPS + 2
    alone, together = DeepCache(interval=2), DeepCache(interval=2, thg=nfe)
    cost, least = (program.prepare(pilot_of(pipe))["nfe"] for program in (alone, together))
    assert least < min(cost, nfe)
    before = sample(pipe)
    sample_under(pipe, together, {"nfe": least})
    assert torch.equal(sample(pipe), before)


def test_leaps_of_the_whole_network_are_counted(pipe):
    policy = as_policy(TaperedPolicy(nfe=STEPS), STEPS)
    assert policy.budget(STEPS, 5.0) == STEPS
    with policy.applied(pipe, {}) as evaluations, counted_work(pipe) as work:
        sample(pipe)
        (cost, *_) = evaluations(len(PROMPTS))
    with counted_work(pipe) as plain:
        sample(pipe)
    assert cost == pytest.approx(2 * STEPS * work.count / plain.count)
    assert cost == STEPS


@pytest.mark.parametrize("order", [0, 1])
def test_cache_dit_is_run_counted_and_removed(order):
    pytest.importorskip("cache_dit")
    flow = stable_diffusion_3()
    before = sample(flow)
    measured = CacheDiT(order=order).prepare(pilot_of(flow))
    assert 0 < measured["nfe"] <= 2 * STEPS
    sample_under(flow, CacheDiT(order=order), measured)
    assert torch.equal(sample(flow), before)
