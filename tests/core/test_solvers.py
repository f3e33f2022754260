"""Each solver against diffusers' own scheduler, on its own grid, over random network outputs."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.solver_like import solver_like
from thg.errors import ScheduleError
from thg.ode.outputs import Node
from thg.ode.schedule import Schedule
from thg.ode.schedulers import read_schedule
from thg.ode.solvers import DPMSolver2, LinearMultistep, Track, adams_weights, ddim, lms, plms, step

diffusers = pytest.importorskip("diffusers")

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SPACINGS = ("leading", "trailing", "linspace")
STEPS = (5, 17, 50)


class _Float64Torch:
    """torch, where float32 is float64: diffusers computes some steps in single precision whatever the input."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def double(monkeypatch):
    """Makes a scheduler compute in double precision throughout."""

    def apply(scheduler):
        monkeypatch.setattr(sys.modules[type(scheduler).__module__], "torch", _Float64Torch())
        for name in ("sigmas", "alphas_cumprod", "final_alpha_cumprod"):
            if hasattr(scheduler, name):
                setattr(scheduler, name, getattr(scheduler, name).double())
        return scheduler

    return apply


def make(name, steps, **config):
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(steps)
    return scheduler


def random_outputs(count, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count + 1, 2, 3, generator=generator, dtype=torch.float64).to(dtype)


def by_diffusers(scheduler, outputs, **keywords):
    x = outputs[0]
    for output, t in zip(outputs[1:], scheduler.timesteps, strict=True):
        if hasattr(scheduler, "scale_model_input"):  # some warn when it was not called
            scheduler.scale_model_input(x, t)
        x = scheduler.step(output, t, x, **keywords).prev_sample
    return x


def by_thg(schedule, solver, outputs):
    track = Track(outputs[0])
    for i in range(schedule.steps):
        node = schedule.nodes[i]
        output = schedule.normalise(track.x, outputs[1 + i], node)
        track = step(track, solver, node, output, schedule.landings[i], schedule.normal)
    return track.x


def distance(a, b):
    return float((a - b).norm() / b.norm())


def check(scheduler, double, **keywords):
    schedule, solver = read_schedule(scheduler), solver_like(scheduler)
    solver = lms(keywords["order"]) if keywords else solver
    outputs = random_outputs(schedule.steps, torch.float32)
    assert distance(by_thg(schedule, solver, outputs), by_diffusers(scheduler, outputs, **keywords)) < 1e-5
    scheduler.set_timesteps(scheduler.num_inference_steps)
    scheduler = double(scheduler)
    outputs = random_outputs(schedule.steps, torch.float64)
    assert distance(by_thg(schedule, solver, outputs), by_diffusers(scheduler, outputs, **keywords)) < 1e-10


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_ddim(steps, spacing, prediction, double):
    config = {"timestep_spacing": spacing, "prediction_type": prediction, "clip_sample": False, **SD}
    check(make("DDIMScheduler", steps, set_alpha_to_one=False, steps_offset=1, **config), double)
    check(make("DDIMScheduler", steps, **config), double)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("extra", [{}, {"use_karras_sigmas": True}, {"prediction_type": "v_prediction"}])
def test_euler(steps, spacing, extra, double):
    check(make("EulerDiscreteScheduler", steps, timestep_spacing=spacing, **SD, **extra), double)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_euler_on_the_flow_path(steps, shift, double):
    check(make("FlowMatchEulerDiscreteScheduler", steps, shift=shift), double)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    "extra",
    [
        *({"timestep_spacing": spacing} for spacing in SPACINGS),
        {"use_karras_sigmas": True},
        {"euler_at_final": True, "final_sigmas_type": "sigma_min"},
        {"final_sigmas_type": "sigma_min", "lower_order_final": False},
        {"solver_type": "heun"},
        {"prediction_type": "v_prediction"},
        {"solver_order": 1},
        {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"},
        {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min", "solver_type": "heun"},
        {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0},
    ],
    ids=str,
)
def test_dpm_multistep(steps, extra, double):
    check(make("DPMSolverMultistepScheduler", steps, **SD, **extra), double)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("steps", [6, *STEPS])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"lower_order_final": True},
        {"use_karras_sigmas": True},
        {"solver_type": "heun"},
        {"prediction_type": "v_prediction"},
        {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"},
        {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min", "solver_type": "heun"},
    ],
    ids=str,
)
def test_dpm_singlestep(steps, extra, double):
    check(make("DPMSolverSinglestepScheduler", steps, **SD, **extra), double)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("extra", [{"timestep_spacing": "leading"}, {"use_karras_sigmas": True}], ids=str)
def test_linear_multistep_in_sigma(steps, order, extra, double):
    check(make("LMSDiscreteScheduler", steps, **SD, **extra), double, order=order)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("order", [2, 4])
def test_pseudo_linear_multistep(steps, spacing, order, double):
    """PNDMScheduler visits its second time twice to improve the first step; with the same output it changes nothing.

    On uneven grids it takes that first step from the wrong time (t_1 + T // N), so there we begin after it. Its own
    order is 4; it stops at order 2 when it is made to forget all but one output.
    """
    config = {"skip_prk_steps": True, "timestep_spacing": spacing, "steps_offset": 1, **SD}
    scheduler = double(make("PNDMScheduler", steps, **config))
    schedule, solver = read_schedule(scheduler), plms(order)
    assert schedule.steps == steps
    outputs = random_outputs(steps, torch.float64)
    x, track = outputs[0], Track(outputs[0])
    for count, t in enumerate(scheduler.timesteps):
        if count > 1:
            scheduler.ets = scheduler.ets[1 - order :]
        x = scheduler.step(outputs[max(count, 1)], int(t), x).prev_sample
        if count == 0:
            continue
        i = count - 1
        track = step(track, solver, schedule.nodes[i], outputs[1 + i], schedule.landings[i], schedule.normal)
        if i == 0 and spacing != "leading":
            track = replace(track, x=x)
        assert distance(track.x, x) < 1e-10


def test_solver_like_knows_what_it_cannot_follow():
    for scheduler, word in (
        (make("DDIMScheduler", 10), "clip_sample"),
        (make("UniPCMultistepScheduler", 10), "UniPCMultistepScheduler"),
        (make("DPMSolverMultistepScheduler", 10, solver_order=3), "order 3"),
        (make("DPMSolverMultistepScheduler", 10, algorithm_type="sde-dpmsolver++"), "sde-dpmsolver"),
        (make("DPMSolverMultistepScheduler", 10, thresholding=True), "thresholding"),
        (make("PNDMScheduler", 10, skip_prk_steps=True, prediction_type="v_prediction"), "v_prediction"),
    ):
        with pytest.raises(ScheduleError, match=word):
            solver_like(scheduler)


# -- the coefficients themselves


def test_adams_weights_are_those_of_the_books():
    assert adams_weights([0, 1], 2) == pytest.approx((-1 / 2, 3 / 2))
    assert adams_weights([0, 1, 2], 3) == pytest.approx((5 / 12, -16 / 12, 23 / 12))
    assert adams_weights([0, 1, 2, 3], 4) == pytest.approx((-9 / 24, 37 / 24, -59 / 24, 55 / 24))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4, unique_by=lambda v: round(v, 2)), st.integers(0, 3))
def test_adams_weights_integrate_polynomials(nodes, degree):
    nodes = sorted(nodes)
    target = nodes[-1] + 0.5
    degree = min(degree, len(nodes) - 1)
    mean = (target ** (degree + 1) - nodes[-1] ** (degree + 1)) / (degree + 1) / 0.5
    found = sum(w * v**degree for w, v in zip(adams_weights(nodes, target), nodes, strict=True))
    assert found == pytest.approx(mean, rel=1e-6, abs=1e-6)


@given(st.integers(0, 6), st.integers(1, 6))
def test_a_first_order_step_is_its_substeps(start, length):
    """The reason for the first-order identity: with a frozen output, i -> j equals going through every step between."""
    for schedule in (Schedule.vp(12), Schedule.flow(12, time=(1, 0), shift=2.0)):
        nodes, solver = schedule.nodes, ddim()
        a, b = 1.0, 0.0
        for i in range(start, start + length):
            one, (weight,) = solver.coefficients((nodes[i],), nodes[i + 1], schedule.normal)
            a, b = one * a, one * b + weight
        whole, (weight,) = solver.coefficients((nodes[start],), nodes[start + length], schedule.normal)
        assert (a, b) == (pytest.approx(whole, rel=1e-12), pytest.approx(weight, rel=1e-12))


def test_second_order_steps_at_the_ends_of_the_noise_scale_are_first_order():
    noise, middle, clean = Node(0, 1.0, 0.0, 1.0), Node(1, 0.5, 0.5, 0.5), Node(2, 0.0, 1.0, 0.0)
    for singlestep in (False, True):
        assert DPMSolver2(singlestep=singlestep).coefficients((noise, middle), clean, "sample") == (0.0, (1.0,))


def test_orders_that_are_not_there():
    with pytest.raises(ScheduleError, match="from 1 to 4, not 5"):
        LinearMultistep(5)


def test_solvers_are_values():
    assert lms(2) == lms(2) != plms(2)
    assert len({ddim(), lms(1), plms(2)}) == 2
    assert np.isinf(DPMSolver2().first_order_into)
