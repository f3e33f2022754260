"""The table of schedulers says what diffusers' schedulers do, by measurement."""

from __future__ import annotations

import diffusers
import pytest
import torch

from tests.pipelines.families.case import ddim
from tests.solver_like import METHODS, solver_like
from thg.errors import ScheduleError
from thg.ode.schedulers import SCHEDULERS, adds_noise, by_option, kind_of, option_names, order_of
from thg.pipelines.describe import describe, host_copy, scheduler_response
from thg.plans.response import HIGHEST_ORDER

FLOW_OPTIONS = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
NEEDS = {"DPMSolverSDEScheduler": "torchsde"}
LINEAR = [row for row in SCHEDULERS.values() if not row.adds_noise]


def made(name: str, steps: int = 12, **options):
    cls = getattr(diffusers, name)
    own = {} if name.startswith("FlowMatch") else dict(ddim().config)
    if name == "PNDMScheduler":
        own["skip_prk_steps"] = True
    scheduler = cls.from_config(own, **options)
    scheduler.set_timesteps(steps)
    return scheduler


def response(scheduler):
    return scheduler_response(*host_copy(scheduler, scheduler.timesteps))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_linear_and_noisy_as_the_table_says(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    kind, scheduler = SCHEDULERS[name], made(name, 30)
    assert kind_of(scheduler) is kind
    torch.manual_seed(0)
    state = torch.get_rng_state()
    found, reason = response(scheduler)
    assert torch.equal(torch.get_rng_state(), state)
    assert (found is None) == kind.adds_noise
    order = min(kind.order, HIGHEST_ORDER) if name != "UniPCMultistepScheduler" else 3  # its corrector looks back, too
    assert found is None or found.order() == order
    assert adds_noise(scheduler) == kind.adds_noise == ("noise" in reason)
    if kind.adds_noise:
        assert not SCHEDULERS[kind.instead].adds_noise
        run_twice = [_almost_final(made(name), seed) for seed in (0, 1)]
        assert not torch.equal(*run_twice)


def _almost_final(scheduler, seed):
    """Where a run is before its last step if its network puts out nothing."""
    torch.manual_seed(seed)
    x = torch.ones(1, 4, 2, 2)
    for t in scheduler.timesteps[:-1]:
        arguments = (t, x)
        if isinstance(scheduler, diffusers.DDPMWuerstchenScheduler):  # takes one time per sample
            arguments = (t.reshape(1), x)
        if isinstance(scheduler, diffusers.CogVideoXDPMScheduler):  # takes the previous step
            arguments = (None, t, None, x)
        x = scheduler.step(torch.zeros_like(x), *arguments, return_dict=False)[0]
    return x


@pytest.mark.parametrize("name", [row.name for row in LINEAR if "flow" in row.predicts])
def test_flow_schedulers_run_on_flows(name):
    scheduler = made(name, **({} if name.startswith("FlowMatch") else FLOW_OPTIONS))
    assert response(scheduler)[0] is not None


@pytest.mark.parametrize("name", [row.name for row in SCHEDULERS.values() if row.name in METHODS])
def test_a_solver_of_the_core_has_the_order_of_the_scheduler(name):
    scheduler = made(name)
    assert solver_like(scheduler).order == order_of(scheduler)


@pytest.mark.parametrize("name", [row.name for row in LINEAR if row.name not in METHODS])
def test_a_scheduler_without_a_counterpart_is_named(name):
    with pytest.raises(ScheduleError, match=f"{name} has no counterpart"):
        solver_like(made(name))


def test_the_order_is_the_configured_one():
    assert order_of(made("DPMSolverMultistepScheduler", solver_order=3)) == 3
    assert order_of(made("HeunDiscreteScheduler")) == 2


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("DDIMScheduler", {"clip_sample": True}),
        ("DPMSolverMultistepScheduler", {"thresholding": True}),
        ("UniPCMultistepScheduler", {"thresholding": True}),
    ],
)
def test_a_scheduler_that_clips_is_not_linear(name, settings):
    found, reason = response(made(name, **settings))
    assert found is None
    assert "not linear with this configuration" in reason


def test_settings_that_add_noise():
    assert adds_noise(made("DPMSolverMultistepScheduler", algorithm_type="sde-dpmsolver++"))
    assert adds_noise(made("FlowMatchEulerDiscreteScheduler", stochastic_sampling=True))


def test_settings_that_give_nan_are_not_said_to_add_noise():
    found, reason = response(made("UniPCMultistepScheduler", predict_x0=False))
    assert found is None
    assert reason == "UniPCMultistepScheduler gives NaN or infinity with this configuration"


def test_noise_is_measured_where_the_table_has_no_row():
    scheduler = made("UnCLIPScheduler", beta_schedule="squaredcos_cap_v2")
    assert kind_of(scheduler) is None
    assert describe(scheduler, scheduler.timesteps).adds_noise


def test_a_response_is_measured_once_per_configuration():
    first, second, other = made("DDIMScheduler"), made("DDIMScheduler"), made("DDIMScheduler", steps=13)
    assert response(first)[0] is response(second)[0]
    assert response(first)[0] is not response(other)[0]


@pytest.mark.parametrize(
    ("name", "first", "length", "begin"),
    [
        ("PNDMScheduler", 2, 11, 2),  # its second time comes twice, and image to image begins with the second of them
        ("PNDMScheduler", 2, None, 1),
        ("PNDMScheduler", 0, 6, 0),
        ("DDIMScheduler", 3, 9, 3),
        ("DDIMScheduler", 3, 12, 0),  # so many steps do not begin there
    ],
)
def test_where_a_run_begins(name, first, length, begin):
    scheduler = made(name)
    _, calls = host_copy(scheduler, scheduler.timesteps, scheduler.timesteps[first], length)
    assert calls == scheduler.timesteps[begin:].tolist()


def test_a_network_that_gets_a_share_of_the_schedule_begins_at_the_first_time():
    """It is 1 there, which is a later time of this scheduler."""
    scheduler = made("FlowMatchEulerDiscreteScheduler")
    assert scheduler.timesteps[0] == 1000
    scheduler.timesteps[-1] = 1.0
    _, calls = host_copy(scheduler, scheduler.timesteps, scheduler.timesteps[0] / 1000)
    assert len(calls) == 12


def test_names_on_the_command_line():
    assert len(set(option_names())) == len(option_names())
    assert by_option("heun", flow=False).name == "HeunDiscreteScheduler"
    assert by_option("heun", flow=True).name == "FlowMatchHeunDiscreteScheduler"
    assert by_option("unipc", flow=True).name == "UniPCMultistepScheduler"
