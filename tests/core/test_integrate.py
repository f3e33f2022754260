"""thg.sample: its identities, the rules of a plan on cases done by hand, its count of evaluations, and bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.problems import GUIDANCE, LABEL, SOLVERS, mixture, noise, schedule
from thg.errors import NonFiniteError, PlanError
from thg.ode.integrate import sample
from thg.ode.schedule import Schedule
from thg.ode.schedulers import read_schedule
from thg.ode.solvers import Track, ddim, dpm_multistep, euler, lms, step
from thg.plans.plan import Plan

FORMS = ("predictor", "two-state")
BETAS = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2


def full(steps, **more):
    return Plan(steps, range(steps), **more)


def thg(plan, grid, solver, form="predictor", model=None, x=None, guidance_scale=GUIDANCE):
    model = model or mixture().denoiser(grid, LABEL)
    x = noise() if x is None else x
    return sample(model, x, plan, grid, solver, guidance_scale=guidance_scale, form=form)


def plain_cfg(grid, solver, guided=lambda i: True):
    """Classifier-free guidance as everybody writes it."""
    model = mixture().denoiser(grid, LABEL)
    track = Track(noise())
    for i in range(grid.steps):
        node = grid.nodes[i]
        e_c, e_u = (grid.normalise(track.x, model(track.x, node.time, c), node) for c in (True, False))
        output = e_u + GUIDANCE * (e_c - e_u) if guided(i) else e_c
        track = step(track, solver, node, output, grid.landings[i], grid.normal)
    return track.x


@st.composite
def plans(draw, max_steps=12, **fixed):
    steps = draw(st.integers(1, max_steps))
    start = draw(st.integers(0, steps - 1))
    coarse = {start, *draw(st.sets(st.integers(start, steps - 1)))}
    return Plan(
        steps,
        sorted(coarse),
        start=start,
        cutoff=draw(st.integers(start + 1, steps)),
        boost=draw(st.sampled_from([1.0, 1.1, 0.7])),
        **{"hare_order": draw(st.sampled_from([1, 2])), **fixed},
    )


# -- identities


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("interval", [(0, 12), (0, 7), (4, 9), (5, 12)])
def test_the_full_grid_is_plain_cfg(form, name, interval):
    grid = schedule(12)
    start, cutoff = interval
    expected = plain_cfg(grid, SOLVERS[name], guided=lambda i: start <= i < cutoff)
    plan = Plan(12, range(start, 12), start=start, cutoff=cutoff, boost=1.3)
    found = thg(plan, grid, SOLVERS[name], form)
    assert found.nfe == 12 + cutoff - start
    assert torch.allclose(found.x, expected, rtol=1e-10, atol=1e-11)


@settings(deadline=None, max_examples=25)
@given(plans(hare_order=1), st.sampled_from(["vp", "flow", "betas"]))
def test_first_order_identity(plan, kind):
    """With a first-order solver and a held hare, Algorithm 1 is the plain solver on e_c + (w - 1) b d."""
    grid = {
        "vp": lambda n: Schedule.vp(n, final_time=0.05),
        "flow": lambda n: Schedule.flow(n, time=(1, 0), shift=2.0),
        "betas": lambda n: Schedule.from_betas(BETAS, n),
    }[kind](plan.steps)
    one, two = (thg(plan, grid, euler(), form).x for form in FORMS)
    assert torch.allclose(one, two, rtol=1e-12, atol=1e-12)


def test_all_kinds_of_output_give_the_same_picture():
    plan = Plan(12, range(0, 12, 2))
    results = []
    for kind in ("epsilon", "v_prediction", "sample"):
        grid = Schedule.from_betas(BETAS, 12, prediction=kind)
        results.append(thg(plan, grid, dpm_multistep()).x)
    assert torch.allclose(results[0], results[1], rtol=1e-9)
    assert torch.allclose(results[0], results[2], rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_divided_by_alpha_gives_the_same_picture(form):
    """Euler and LMS of diffusers carry x / alpha; the network sees the same input."""
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.EulerDiscreteScheduler(timestep_spacing="linspace")
    scheduler.set_timesteps(15)
    exploding = read_schedule(scheduler)
    preserving = Schedule.on_curve(exploding.curve, exploding.curve_times)
    plan = Plan(15, range(0, 15, 3), hare_order=1)
    start = preserving.nodes[0]
    a = thg(plan, exploding, lms(), form, x=noise() / start.alpha).x
    b = thg(plan, preserving, lms(), form).x
    assert torch.allclose(a, b, rtol=1e-5)


def test_samples_of_a_batch_do_not_touch_each_other():
    grid = schedule(10)
    plan = Plan(10, range(0, 10, 3), corrector=1.0)
    together = thg(plan, grid, dpm_multistep()).x
    for i in range(4):
        assert torch.allclose(thg(plan, grid, dpm_multistep(), x=noise()[i : i + 1]).x[0], together[i])


# -- the rules of a plan, on a network that depends on the step alone

GRID = Schedule.flow(8, time=(8, 0))  # uniform, each step -1/8, so that x_8 = x_0 - sum of outputs / 8
TORTOISE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]  # 36 in all


def by_step(hare):
    """A network with e_c = TORTOISE[i] and d = hare(i) at step i."""

    def denoiser(x, t, conditional):
        i = round(8 - t)
        return torch.full_like(x, TORTOISE[i] - (0 if conditional else hare(i)))

    return denoiser


def summed(plan, hare, guidance_scale=3.0, form="predictor"):
    """The sum over steps of the outputs that the run used."""
    x = torch.zeros(1, 2, dtype=torch.float64)
    found = thg(plan, GRID, euler(), form, by_step(hare), x, guidance_scale)
    return -8 * float(found.x[0, 0])


SQUARES = [0.0, 1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0]


@pytest.mark.parametrize("form", FORMS)
def test_a_held_hare_by_hand(form):
    plan = Plan(8, (0, 1, 4), hare_order=1)
    used = 0 + 1 * 3 + 16 * 4  # leaps 0-1, 1-4, 4-8
    assert summed(plan, lambda i: SQUARES[i], form=form) == pytest.approx(36 + 2 * used)


def test_an_extrapolated_hare_by_hand():
    plan = Plan(8, (0, 1, 4))
    used = 0 + (1 + 2 + 3) + (16 + 21 + 26 + 31)  # slopes 1 and 5
    assert summed(plan, lambda i: SQUARES[i]) == pytest.approx(36 + 2 * used)


@pytest.mark.parametrize("form", FORMS)
def test_cutoff_and_boost_by_hand(form):
    plan = Plan(8, (0, 1, 4, 6), cutoff=5, boost=1.5, hare_order=1)
    used = 0 + 1.5 * (1 * 3) + 16  # the last leap ends at the cutoff after one step, so it is not boosted
    found = thg(plan, GRID, euler(), form, by_step(lambda i: SQUARES[i]), torch.zeros(1, 2, dtype=torch.float64), 3.0)
    assert found.nfe == plan.nfe == 8 + 3
    assert -8 * float(found.x[0, 0]) == pytest.approx(36 + 2 * used)


def test_a_leap_that_crosses_the_cutoff_ends_there():
    plan = Plan(8, (0, 4), cutoff=6, boost=2.0, hare_order=1)
    assert summed(plan, lambda i: 1.0) == pytest.approx(36 + 2 * 2.0 * 6)


def test_guidance_scale_of_one_is_the_conditional_model():
    assert summed(Plan(8, (0, 3)), lambda i: SQUARES[i], guidance_scale=1.0) == pytest.approx(36)


# -- the corrector


@pytest.mark.parametrize("name", SOLVERS)
def test_the_corrector_is_exact_where_the_interpolation_is(name):
    """A hare linear in the step: the first leap holds it, the corrector then finds the line, and all is as in CFG.

    Also what a multistep solver remembers of the leap must have been corrected.
    """
    grid = Schedule.vp(8, final_time=0.1)
    times = grid.times.tolist()

    def denoiser(x, t, conditional):
        i = times.index(t)
        return torch.full_like(x, math.cos(i) - (0 if conditional else 1 + 0.5 * i))

    cfg = thg(full(8), grid, SOLVERS[name], model=denoiser).x
    off = thg(Plan(8, (0, 3, 5)), grid, SOLVERS[name], model=denoiser).x
    on = thg(Plan(8, (0, 3, 5), corrector=1.0), grid, SOLVERS[name], model=denoiser).x
    half = thg(Plan(8, (0, 3, 5), corrector=0.5), grid, SOLVERS[name], model=denoiser).x
    assert not torch.allclose(off, cfg, rtol=1e-3)
    assert torch.allclose(on, cfg, rtol=1e-11)
    assert torch.allclose(half, (on + off) / 2, rtol=1e-11)


def test_the_corrector_interpolates_through_one_evaluation_more_than_the_hare():
    used = sum(SQUARES)  # an extrapolated hare is corrected by the parabola through three
    assert summed(Plan(8, (0, 1, 4, 7), corrector=1.0), lambda i: SQUARES[i]) == pytest.approx(36 + 2 * used)
    used = 0 + (1 + 6 + 11) + (16 + 27 + 38) + 49  # a held one by the line through two
    plan = Plan(8, (0, 1, 4, 7), hare_order=1, corrector=1.0)
    assert summed(plan, lambda i: SQUARES[i]) == pytest.approx(36 + 2 * used)


def test_the_corrector_keeps_the_boost():
    plan = Plan(8, (0, 1, 4, 7), corrector=1.0, boost=1.5)
    boosted = SQUARES[0] + 1.5 * sum(SQUARES[1:7]) + SQUARES[7]
    assert summed(plan, lambda i: SQUARES[i]) == pytest.approx(36 + 2 * boosted)


def test_the_corrector_brings_the_run_closer_to_cfg():
    grid = schedule(48)
    cfg = thg(full(48), grid, ddim()).x
    distances = [float((thg(Plan(48, range(0, 48, 3), corrector=c), grid, ddim()).x - cfg).norm()) for c in (0.0, 1.0)]
    assert distances[1] < 0.5 * distances[0]


# -- evaluations


@settings(deadline=None, max_examples=40)
@given(plans(corrector=0.0), st.sampled_from(FORMS), st.sampled_from(sorted(SOLVERS)))
def test_evaluations_are_those_of_the_plan(plan, form, name):
    calls = []

    def counting(x, t, conditional):
        calls.append(conditional)
        return 0.1 * x

    found = thg(plan, schedule(plan.steps), SOLVERS[name], form, counting)
    assert found.nfe == plan.nfe == len(calls)
    assert calls.count(True) == plan.steps
    assert found.x.shape == noise().shape


# -- precision


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_network_sees_the_precision_of_the_latents(dtype):
    seen = set()
    model = mixture().denoiser(schedule(10), LABEL)

    def spy(x, t, conditional):
        seen.add(x.dtype)
        return model(x, t, conditional)

    found = thg(Plan(10, range(0, 10, 2)), schedule(10), dpm_multistep(), model=spy, x=noise().to(dtype)).x
    assert seen == {dtype}
    assert found.dtype == dtype
    exact = thg(Plan(10, range(0, 10, 2)), schedule(10), dpm_multistep()).x
    assert torch.allclose(found.double(), exact, atol=0.1)


# -- bad input


def broken(at, branch, value):
    grid = schedule(6)

    def denoiser(x, t, conditional):
        output = 0.1 * x
        if t == grid.nodes[at].time and conditional == branch:
            output[0, 0] = value
        return output

    return grid, denoiser


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("branch", "name"), [(True, "conditional"), (False, "unconditional")])
def test_a_network_output_that_is_not_finite(form, value, branch, name):
    grid, denoiser = broken(4, branch, value)
    with pytest.raises(NonFiniteError, match=rf"the {name} network output at step 4 \(time"):
        thg(Plan(6, (0, 2, 4)), grid, ddim(), form, denoiser)


def test_latents_that_are_not_finite():
    x = noise()
    x[1, 1] = math.nan
    with pytest.raises(NonFiniteError, match="latents at step 0"):
        thg(full(6), schedule(6), ddim(), x=x)


def test_large_values_are_not_infinite():
    """A sum that overflows is not a value that does."""
    grid = Schedule.flow(2, time=(1, 0))
    found = thg(full(2), grid, euler(), model=lambda x, t, c: 0 * x, x=torch.full((1, 8), 2e38))
    assert torch.equal(found.x, torch.full((1, 8), 2e38))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plan": full(9)}, r"plan is for 9 steps, the schedule has 6; make the plan for 6 steps"),
        ({"model": lambda x, t, c: x.repeat(1, 2)}, r"shape \(4, 4\), the latents have \(4, 2\)"),
        ({"x": torch.ones(4, 2, dtype=torch.long)}, r"torch\.int64"),
        ({"x": [1.0, 2.0]}, "not list"),
        ({"x": torch.ones(0, 2)}, r"batch first, not torch\.float32 of shape \(0, 2\)"),
        ({"form": "both"}, "'predictor' or 'two-state'"),
        ({"guidance_scale": math.nan}, "guidance_scale"),
        ({"guidance_scale": -1.0}, "guidance_scale"),
        ({"form": "two-state", "plan": full(6, corrector=1.0)}, "corrector=1 needs form='predictor'"),
    ],
)
def test_input_that_does_not_fit(change, words):
    given_input = {"plan": full(6), "grid": schedule(6), "solver": ddim(), **change}
    with pytest.raises(PlanError, match=words):
        thg(**given_input)
