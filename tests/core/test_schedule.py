"""Schedules: the levels of diffusers' own grids, any time in between, and what a network output means there."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thg.errors import ScheduleError
from thg.ode.outputs import Node, content, express, log_snr
from thg.ode.schedule import Schedule
from thg.ode.schedulers import read_schedule, scheduler_log_snr

diffusers = pytest.importorskip("diffusers")

BETAS = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
KINDS = ("epsilon", "v_prediction", "sample", "flow")
SPACINGS = ("leading", "trailing", "linspace")


def make(name, steps=10, **config):
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(steps)
    return scheduler


# -- made by hand


def test_levels_at_any_time():
    for schedule in (Schedule.from_betas(BETAS, 50), Schedule.vp(50)):
        times = np.linspace(0.01, 0.99, 40) * schedule.times[0]
        alpha, sigma = schedule.levels_at(times)
        assert alpha.dtype == sigma.dtype == np.float64
        assert np.allclose(alpha**2 + sigma**2, 1, atol=1e-12)
        assert np.all(np.diff(alpha) < 0)
    flow = Schedule.flow(20, time=(1000, 0))
    assert np.allclose(flow.levels_at([250.0, 1000.0]), [[0.75, 0.0], [0.25, 1.0]])
    assert flow.log_snr[0] == -np.inf
    assert flow.log_snr[-1] == np.inf


def test_whole_times_are_those_of_the_training_schedule():
    schedule = Schedule.from_betas(BETAS, 10)
    alphas_cumprod = np.cumprod(1 - BETAS)
    found, _ = schedule.levels_at([0, 500, 500.5, 501, 999])
    assert np.allclose(found[[0, 1, 3, 4]] ** 2, alphas_cumprod[[0, 500, 501, 999]], rtol=1e-12)
    assert found[3] < found[2] < found[1]


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("steps", [7, 50])
def test_spacing_is_that_of_diffusers(spacing, steps):
    schedule = Schedule.from_betas(BETAS, steps, spacing=spacing, steps_offset=1, set_alpha_to_one=False)
    scheduler = make("EulerDiscreteScheduler", steps, timestep_spacing=spacing, steps_offset=1, **SD)
    assert np.allclose(schedule.times[:-1], scheduler.timesteps.numpy(), atol=1e-3)
    assert np.allclose(schedule.log_snr[:-1], scheduler_log_snr(scheduler), atol=1e-3)
    assert schedule.alpha[-1] ** 2 == pytest.approx(1 - BETAS[0])


def test_the_flow_grid_is_shifted():
    schedule = Schedule.flow(4, time=(1000, 0), shift=3.0)
    assert np.allclose(schedule.sigma, [1, 0.9, 0.75, 0.5, 0])
    assert np.allclose(schedule.times, 1000 * schedule.sigma)


def test_between_two_nodes():
    schedule = Schedule.from_betas(BETAS, 10)
    middle = schedule.node(3.5)
    assert middle.time == (schedule.times[3] + schedule.times[4]) / 2  # t_m of Algorithm 3
    assert middle.alpha == float(schedule.levels_at(middle.time)[0])
    assert schedule.node(4) == schedule.nodes[4]
    assert schedule.node(9.9).time >= 0  # a network is never asked below its first training time
    with pytest.raises(ScheduleError, match="outside the grid of 10"):
        schedule.node(10.5)


# -- the network's own time


@pytest.mark.parametrize("time", [(1, 0), (0, 1), (999, 0), (-3.5, 2)])
def test_time_is_counted_as_the_network_counts_it(time):
    at_noise, at_data = time
    for own, usual in (
        (Schedule.flow(10, time=time), Schedule.flow(10, time=(1, 0))),
        (Schedule.vp(10, time=time), Schedule.vp(10)),
        (Schedule.from_betas(BETAS, 10, time=time), Schedule.from_betas(BETAS, 10, time=(1, 0))),
    ):
        assert np.allclose(own.alpha, usual.alpha, atol=1e-12)
        assert np.allclose(own.times, at_data + (at_noise - at_data) * usual.times)
        middles = [(own.node(i + 0.5), usual.node(i + 0.5)) for i in range(9)]
        assert np.allclose([a.sigma for a, _ in middles], [b.sigma for _, b in middles])
        assert own.times[0] == pytest.approx(at_noise)


def test_velocity_points_the_way_that_time_runs():
    assert Schedule.flow(2, time=(1, 0)).velocity == Schedule.flow(2, time=(1000, 0)).velocity == "noise-data"
    assert Schedule.flow(2, time=(0, 1)).velocity == "data-noise"
    assert Schedule.flow(2, time=(0, 1), velocity="noise-data").velocity == "noise-data"


def test_the_grid_of_edm():
    schedule = Schedule.edm(np.int64(18))
    assert schedule.prediction == "sample"
    assert np.allclose(schedule.sigma[[0, -2, -1]], [80, 0.002, 0])
    assert np.array_equal(schedule.times, schedule.sigma)
    assert np.array_equal(schedule.alpha, np.ones(19))
    assert np.allclose(np.diff(schedule.sigma[:-1] ** (1 / 7), n=2), 0, atol=1e-12)
    karras = make("EulerDiscreteScheduler", 18, use_karras_sigmas=True, sigma_min=0.002, sigma_max=80, **SD)
    assert np.allclose(schedule.sigma, karras.sigmas.numpy(), rtol=1e-5)


def test_integer_times_are_rounded_and_the_levels_with_them():
    schedule = Schedule.from_betas(BETAS, 30, integer_times=True)
    fractional = Schedule.from_betas(BETAS, 30)
    assert np.array_equal(schedule.times, fractional.times)  # trailing spacing is whole by itself
    for i in range(29):
        middle = schedule.node(i + 0.5)
        assert middle.time == int(middle.time)
        assert abs(middle.time - fractional.node(i + 0.5).time) <= 0.5
        assert middle.alpha**2 == pytest.approx(np.cumprod(1 - BETAS)[int(middle.time)], rel=1e-12)
    linspace = Schedule.from_betas(BETAS, 30, integer_times=True, spacing="linspace")
    assert all(time == int(time) for time in linspace.times)
    last = Schedule.from_betas(BETAS, 10, integer_times=True, spacing="leading")
    assert last.node(9.5).time == 0  # below its first training time the network is told that one


@pytest.mark.parametrize("prediction", ["v_prediction", "sample"])
def test_zero_terminal_snr(prediction):
    betas = np.append(BETAS[:-1], 1.0)
    schedule = Schedule.from_betas(betas, 10, prediction=prediction)
    assert schedule.alpha[0] == pytest.approx(2.0**-12)
    with pytest.raises(ScheduleError, match="zero terminal SNR"):
        Schedule.from_betas(betas, 10)


# -- what an output means


@given(st.floats(0.02, 1.0), st.floats(0.02, 1.0), st.sampled_from(KINDS), st.sampled_from(KINDS), st.floats(-2, 2))
def test_every_kind_of_output_says_the_same(alpha, sigma, kind, other, x0):
    node, eps = Node(0, 0.5, alpha, sigma), 0.3
    x = alpha * x0 + sigma * eps
    given_output, expected = (a * x0 + b * eps for a, b in (content(node, kind), content(node, other)))
    p, q = express(node, kind, content(node, other))
    assert p * x + q * given_output == pytest.approx(expected, abs=1e-9)


def test_v_is_the_v_of_the_papers():
    alpha, sigma = 0.6, 0.8
    assert content(Node(0, 0, alpha, sigma), "v_prediction") == pytest.approx((-sigma, alpha))
    exploding = Node(0, 0, 1.0, sigma / alpha)  # the same level, state divided by alpha
    assert content(exploding, "v_prediction") == pytest.approx((-sigma, alpha))


def test_an_output_that_says_nothing_is_refused():
    with pytest.raises(ScheduleError, match=r"pure noise \(alpha 0.* 'epsilon' does not determine the data"):
        express(Node(0, 999.0, 0.0, 1.0), "epsilon", (1.0, 0.0))


@pytest.mark.parametrize("kind", KINDS[:3])
def test_normalised_once(kind):
    scheduler = make("EulerDiscreteScheduler", prediction_type=kind, **SD)
    schedule = read_schedule(scheduler)
    node = schedule.nodes[4]
    x0, eps = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    x = node.alpha * x0 + node.sigma * eps
    a, b = content(node, kind)
    assert torch.allclose(schedule.normalise(x, a * x0 + b * eps, node), eps)
    scaled = scheduler.scale_model_input(x, scheduler.timesteps[4])
    assert torch.allclose(schedule.network_input(x, node), scaled.double(), rtol=1e-6)


# -- read from diffusers

WITH_SIGMAS = [
    *itertools.product(
        ("EulerDiscreteScheduler", "LMSDiscreteScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"),
        ({}, {"use_karras_sigmas": True}, {"timestep_spacing": "trailing"}),
    ),
    ("DPMSolverSinglestepScheduler", {"lower_order_final": True}),
    ("DPMSolverSinglestepScheduler", {"lower_order_final": True, "use_karras_sigmas": True}),
    ("DEISMultistepScheduler", {}),
    ("DEISMultistepScheduler", {"use_karras_sigmas": True}),
]


@pytest.mark.parametrize(("name", "extra"), WITH_SIGMAS)
@pytest.mark.parametrize("steps", [4, 25])
def test_schedulers_with_sigmas(name, steps, extra):
    scheduler = make(name, steps, **SD, **extra)
    schedule = read_schedule(scheduler)
    sigmas = scheduler.sigmas.double().numpy()
    assert np.allclose(schedule.sigma / schedule.alpha, sigmas, rtol=1e-9)
    assert np.array_equal(schedule.times[:-1], scheduler.timesteps.double().numpy())
    assert np.allclose(schedule.log_snr[:-1], scheduler_log_snr(scheduler))
    for i in range(steps):  # between two nodes lies between their levels, and the network is told a time that fits
        middle = schedule.node(i + 0.5)
        assert schedule.nodes[i].log_snr <= middle.log_snr <= schedule.nodes[i + 1].log_snr
        assert 0 <= middle.time <= 999


@pytest.mark.parametrize("name", ["DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "DEISMultistepScheduler"])
def test_schedulers_with_flow_sigmas(name):
    scheduler = make(name, 10, use_flow_sigmas=True, flow_shift=3.0, prediction_type="flow_prediction")
    schedule = read_schedule(scheduler)
    assert schedule.prediction == schedule.normal == "flow"
    assert np.allclose(schedule.sigma, scheduler.sigmas.double().numpy())
    assert np.allclose(schedule.alpha, 1 - schedule.sigma)


def test_flow_matching_with_shift_and_own_sigmas():
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    scheduler.set_timesteps(sigmas=np.linspace(1, 0.1, 8), mu=1.1)
    schedule = read_schedule(scheduler)
    assert np.allclose(schedule.sigma, scheduler.sigmas.double().numpy())
    assert scheduler_log_snr(scheduler)[0] == -np.inf


@pytest.mark.parametrize("name", ["DDIMScheduler", "PNDMScheduler"])
@pytest.mark.parametrize("one", [True, False])
def test_schedulers_with_alphas(name, one):
    extra = {"skip_prk_steps": True} if name == "PNDMScheduler" else {}
    scheduler = make(name, 50, set_alpha_to_one=one, steps_offset=1, timestep_spacing="leading", **SD, **extra)
    schedule = read_schedule(scheduler)
    assert schedule.steps == 50
    assert schedule.times[:2].tolist() == [981, 961]
    assert schedule.alpha[-1] == (1 if one else pytest.approx(float(scheduler.alphas_cumprod[0]) ** 0.5))
    assert schedule.landings == schedule.nodes[1:]


def test_ddim_lands_beside_the_next_time_on_uneven_grids():
    schedule = read_schedule(make("DDIMScheduler", 7, timestep_spacing="linspace", **SD))
    assert schedule.times[:2].tolist() == [999, 832]
    assert schedule.landings[0].time == 999 - 1000 // 7 == 857


def test_levels_beyond_the_training_schedule():
    scheduler = make("EulerDiscreteScheduler", 10, use_karras_sigmas=True, sigma_max=80.0, sigma_min=0.002, **SD)
    schedule = read_schedule(scheduler)
    assert schedule.sigma[0] == pytest.approx(80.0)
    assert schedule.nodes[0].log_snr < schedule.node(0.5).log_snr < schedule.nodes[1].log_snr


# -- refused


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("EulerAncestralDiscreteScheduler", {}, r"EulerAncestral.* diffusers\.EulerDiscreteScheduler\.from_config"),
        ("DDPMScheduler", {}, r"DDPMScheduler .* diffusers\.DDIMScheduler"),
        ("LCMScheduler", {}, "LCMScheduler"),
        ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}, "algorithm_type='dpmsolver\\+\\+'"),
        ("HeunDiscreteScheduler", {}, "HeunDiscreteScheduler is not a scheduler whose grid can be read"),
        ("PNDMScheduler", {}, "skip_prk_steps=True"),
        ("DDIMScheduler", {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}, "zero terminal SNR"),
        ("FlowMatchEulerDiscreteScheduler", {"stochastic_sampling": True}, "stochastic_sampling"),
        ("FlowMatchEulerDiscreteScheduler", {"invert_sigmas": True}, "invert_sigmas"),
        ("EulerDiscreteScheduler", {"timestep_type": "continuous", "prediction_type": "v_prediction"}, "timestep_type"),
    ],
)
def test_schedulers_that_are_refused(name, config, words):
    with pytest.raises(ScheduleError, match=words):
        read_schedule(make(name, **config))


def test_the_number_of_steps_must_be_set():
    with pytest.raises(ScheduleError, match=r"set_timesteps\(50\)"):
        read_schedule(diffusers.DDIMScheduler())
    with pytest.raises(ScheduleError, match=r"set_timesteps\(50\)"):
        scheduler_log_snr(diffusers.DDIMScheduler())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Schedule.from_betas([0.1, 1.2], 2), "between 0 and 1"),
        (lambda: Schedule.from_betas(BETAS, 0), "at least 1 step, not 0"),
        (lambda: Schedule.from_betas(BETAS, 1001), "steps must lie between 1 and the 1000"),
        (lambda: Schedule.from_betas(BETAS, 2.5), "steps must be a whole number, not 2.5"),
        (lambda: Schedule.from_betas(BETAS, 1000, integer_times=True).node(3.5), "has no integer time in between"),
        (lambda: Schedule.flow(20, time=(10, 0), integer_times=True), "20 steps do not fit into the integer times"),
        (lambda: Schedule.flow(20), r"needs the network's times; write time=\(1, 0\)"),
        (lambda: Schedule.flow(20, time=1000), "the network's times at noise and at data.*not 1000"),
        (lambda: Schedule.flow(20, time=(1, 1)), "two different numbers"),
        (lambda: Schedule.flow(20, time=(1, 0), velocity="up"), "'noise-data' .* or 'data-noise'"),
        (lambda: Schedule.edm(20, sigma_max=0.001), "sigma_min must lie above 0 and below sigma_max"),
        (lambda: Schedule.from_betas(BETAS, 10, spacing="dense"), "spacing must be one of"),
        (lambda: Schedule.from_betas(BETAS, 10, prediction="noise"), "prediction must be one of"),
        (lambda: Schedule.vp(4, final_time=2.0), "noise must decrease along the grid"),
        (lambda: Schedule.flow(0, time=(1, 0)), "at least 1 step"),
    ],
)
def test_wrong_schedules_by_hand(call, words):
    with pytest.raises(ScheduleError, match=words):
        call()


# -- log-SNR of any scheduler


@pytest.mark.parametrize(
    "name", ["EulerAncestralDiscreteScheduler", "HeunDiscreteScheduler", "DDPMScheduler", "KDPM2DiscreteScheduler"]
)
def test_log_snr_also_of_schedulers_whose_grid_is_refused(name):
    scheduler = make(name, 20, **SD)
    found = scheduler_log_snr(scheduler)
    assert found.shape == (len(scheduler.timesteps),)
    assert np.all(np.diff(found) >= 0)
    table = Schedule.from_betas(BETAS, 1)
    assert np.allclose(found, log_snr(*table.levels_at(scheduler.timesteps.double().numpy())), atol=0.02)


def test_log_snr_at_zero_terminal_snr():
    scheduler = make("DDIMScheduler", 10, rescale_betas_zero_snr=True, timestep_spacing="trailing", **SD)
    assert scheduler_log_snr(scheduler)[0] == -np.inf


def test_log_snr_of_a_time_that_runs_backwards():
    forward = scheduler_log_snr(make("FlowMatchEulerDiscreteScheduler", 10))
    assert np.allclose(scheduler_log_snr(make("FlowMatchEulerDiscreteScheduler", 10, invert_sigmas=True)), forward)


def test_log_snr_of_something_without_noise_levels():
    with pytest.raises(ScheduleError, match="neither `sigmas` nor `alphas_cumprod`"):
        scheduler_log_snr(make("IPNDMScheduler"))


def test_a_scheduler_that_has_not_run_yet():
    fresh = diffusers.DDIMScheduler()
    found = read_schedule(fresh, 20)
    assert fresh.num_inference_steps is None
    fresh.set_timesteps(20)
    assert found.nodes == read_schedule(fresh).nodes
