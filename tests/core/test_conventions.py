"""One network in the conventions of others: every kind of output on every path, each sign and each way to count time
gives the result of thg's own convention; and a convention that is not the network's is told of."""

import math

import numpy as np
import pytest
import torch

import thg
from tests.core.own_network import NONE, denoised, labels, noise, psnr
from thg.ode import dpm_multistep, error_constants, error_constants_first_order, lms
from thg.ode.outputs import content

BETAS = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
ALPHAS = np.sqrt(np.cumprod(1 - BETAS))
KINDS = ("epsilon", "v_prediction", "sample", "flow")
STEPS = 30


def outputs(kind):
    """A network of this kind: what it puts out, given x, alpha, sigma and labels."""

    def network(x, alpha, sigma, label):
        x0 = denoised(x, alpha, sigma, label)
        eps = (x - alpha * x0) / sigma
        size = math.hypot(alpha, sigma)
        return {"epsilon": eps, "sample": x0, "flow": eps - x0, "v_prediction": (alpha * eps - sigma * x0) / size}[kind]

    return network


def run(network, schedule, plan=None, x=None, **more):
    given = {"guidance_scale": 4.0, "condition": labels(6), "unconditional": NONE, **more}
    x = schedule.nodes[0].sigma * noise() if x is None else x
    return thg.sample(network, x, plan, schedule, **given)


def both(network, schedule, **more):
    """Plain CFG, and the same with the default plan."""
    return [run(network, schedule, plan, **more).x for plan in (thg.uniform(every=1), None)]


# -- each way to say the same


def flow_network(kind, time, sign=1.0):
    at_noise, at_data = time

    def network(x, t, label):
        s = (t - at_data) / (at_noise - at_data)
        return sign * outputs(kind)(x, 1 - s, s, label)

    return network


FLOW = {
    "velocity noise-data, time 1 to 0": (flow_network("flow", (1, 0)), {"time": (1, 0)}),
    "velocity noise-data, time 1000 to 0": (flow_network("flow", (1000, 0)), {"time": (1000, 0)}),
    "velocity data-noise, time 0 to 1": (flow_network("flow", (0, 1), -1.0), {"time": (0, 1)}),
    "velocity noise-data, time 0 to 1": (
        flow_network("flow", (0, 1)),
        {"time": (0, 1), "velocity": "noise-data"},
    ),
    "velocity data-noise, time 999 to 0": (
        flow_network("flow", (999, 0), -1.0),
        {"time": (999, 0), "velocity": "data-noise"},
    ),
    "x0, time 1 to 0": (flow_network("sample", (1, 0)), {"time": (1, 0), "prediction": "sample"}),
    "x0, time 0 to 1": (flow_network("sample", (0, 1)), {"time": (0, 1), "prediction": "sample"}),
    "v, time 1 to 0": (flow_network("v_prediction", (1, 0)), {"time": (1, 0), "prediction": "v_prediction"}),
}


@pytest.fixture(scope="module")
def own_flow():
    return both(flow_network("flow", (1, 0)), thg.Schedule.flow(STEPS, time=(1, 0)))


@pytest.mark.parametrize("name", FLOW)
def test_the_straight_path_in_every_convention(name, own_flow):
    network, convention = FLOW[name]
    found = both(network, thg.Schedule.flow(STEPS, **convention))
    for mine, own in zip(found, own_flow, strict=True):
        assert torch.allclose(mine, own, rtol=1e-9, atol=1e-9)
    assert psnr(*found) == pytest.approx(psnr(*own_flow), abs=1e-6)
    assert psnr(*found) > 40


def test_eps_on_the_straight_path_begins_beside_pure_noise(own_flow):
    schedule = thg.Schedule.flow(STEPS, time=(1, 0), prediction="epsilon")
    assert schedule.times[0] == pytest.approx(0.999)
    found = both(flow_network("epsilon", (1, 0)), schedule)
    assert psnr(*found) == pytest.approx(psnr(*own_flow), abs=2)
    assert psnr(found[0], own_flow[0]) > 35


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", [None, (1, 0), (0, 1), (999, 0)])
def test_a_training_schedule_in_every_convention(kind, time):
    at_noise, at_data = time or (999, 0)

    def network(x, t, label):
        index = (t - at_data) / (at_noise - at_data) * 999
        alpha = ALPHAS[round(index)]
        return outputs(kind)(x, alpha, math.sqrt(1 - alpha**2), label)

    schedule = thg.Schedule.from_betas(BETAS, STEPS, prediction=kind, time=time)
    reference = thg.Schedule.from_betas(BETAS, STEPS)
    own = both(lambda x, t, label: outputs("epsilon")(x, *level(round(t)), label), reference)
    found = both(network, schedule)
    alike = 2 if kind == "epsilon" else 1  # of others than noise the velocity leaps
    for mine, theirs in zip(found[:alike], own[:alike], strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-7, atol=1e-7)
    assert psnr(*found) > 40


def level(index):
    return ALPHAS[index], math.sqrt(1 - ALPHAS[index] ** 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["vp", "edm", "flow"])
@pytest.mark.parametrize("solver", [None, lms(), dpm_multistep()], ids=["ddim", "lms", "dpm++"])
def test_every_output_on_every_path(kind, path, solver):
    """The result does not depend on what the network puts out; nothing is divided by zero at the ends."""
    make = {
        "vp": lambda kind: thg.Schedule.vp(STEPS, prediction=kind),
        "edm": lambda kind: thg.Schedule.edm(STEPS, prediction=kind),
        "flow": lambda kind: thg.Schedule.flow(STEPS, time=(1, 0), prediction=kind),
    }[path]
    own = make("flow" if path == "flow" else "epsilon")
    if path == "flow" and kind == "epsilon":
        own = make("epsilon")  # its grid begins elsewhere: against the same grid with a velocity
        own = thg.Schedule.on_curve(own.curve, own.curve_times, "flow")
    results = []
    for schedule in (make(kind), own):
        curve, said = schedule.curve, schedule.prediction

        def network(x, t, label, curve=curve, said=said):
            alpha, sigma = (float(v) for v in curve.levels(np.asarray(t)))
            return outputs(said)(x, alpha, sigma, label)

        results.append(run(network, schedule, thg.uniform(every=2), solver=solver).x)
    assert torch.isfinite(results[0]).all()
    assert torch.allclose(*results, rtol=1e-5, atol=1e-6)


def test_the_grid_of_edm_is_sampled_as_edm_does_it():
    schedule = thg.Schedule.edm(STEPS)
    x = 80 * noise()
    for node, after in zip(schedule.nodes, schedule.nodes[1:], strict=False):
        e = [denoised(x, 1.0, node.sigma, label) for label in (labels(6), torch.full((6,), NONE))]
        guided = e[1] + 4.0 * (e[0] - e[1])
        x = x + (x - guided) / node.sigma * (after.sigma - node.sigma)
    found = run(lambda x, sigma, label: denoised(x, 1.0, sigma, label), schedule, thg.uniform(every=1))
    assert torch.allclose(found.x, x, rtol=1e-8, atol=1e-8)


# -- guidance in an interval


@pytest.mark.parametrize("name", ["velocity noise-data, time 1 to 0", "velocity data-noise, time 0 to 1"])
def test_guidance_in_an_interval(name):
    network, convention = FLOW[name]
    schedule = thg.Schedule.flow(STEPS, **convention)
    own, usual = FLOW["velocity noise-data, time 1 to 0"]
    at_noise, at_data = convention["time"]
    interval = tuple(at_data + (at_noise - at_data) * s for s in (0.25, 0.8))
    cfg = run(network, schedule, thg.uniform(every=1), guidance_interval=interval)
    assert cfg.plan.start == 6
    assert cfg.plan.cutoff == 23
    assert cfg.nfe == cfg.plan.nfe == STEPS + 17
    by_plan = run(network, schedule, thg.Plan(STEPS, range(6, 23), start=6, cutoff=23))
    assert torch.allclose(cfg.x, by_plan.x, rtol=1e-12)
    reference = thg.Schedule.flow(STEPS, **usual)
    plain = run(own, reference, thg.uniform(every=1), guidance_interval=(0.25, 0.8)).x
    for planner in (thg.uniform(nfe=0.7), thg.tapered(0.7)):
        fewer = run(network, schedule, planner, guidance_interval=interval)
        assert fewer.nfe < fewer.summary.cfg_nfe == STEPS + 17
        theirs = run(own, reference, planner, guidance_interval=(0.25, 0.8)).x
        assert psnr(fewer.x, cfg.x) == pytest.approx(psnr(theirs, plain), abs=1e-6)
        assert psnr(fewer.x, cfg.x) > 30


# -- networks that take whole times only


def table_network(seen):
    def network(x, t, label):
        assert isinstance(t, int)
        seen.append(t)
        return outputs("epsilon")(x, *level(t), label)

    return network


def test_a_network_with_a_table_of_times():
    schedule = thg.Schedule.from_betas(BETAS, STEPS, integer_times=True)
    seen = []
    found = run(table_network(seen), schedule, thg.uniform(every=1))
    free = run(
        lambda x, t, label: outputs("epsilon")(x, *level(round(t)), label),
        thg.Schedule.from_betas(BETAS, STEPS),
        thg.uniform(every=1),
    )
    assert torch.equal(found.x, free.x)
    given = {"guidance_scale": 4.0, "condition": labels(6), "unconditional": NONE}
    seen.clear()
    general = error_constants(table_network(seen), noise(), schedule, thg.ode.ddim(), **given)
    short = error_constants_first_order(table_network([]), noise(), schedule, **given)
    assert len(seen) == 4 * STEPS
    assert len(set(seen)) == 2 * STEPS  # the midpoints are times of their own
    assert np.allclose(general.tortoise, short.tortoise, rtol=1e-6)
    assert np.allclose(general.hare, short.hare, rtol=1e-6)


# -- mistakes


def mistaken(network, schedule, **more):
    return run(network, schedule, thg.uniform(every=1), **more)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_wrong_sign_of_the_velocity_is_an_error(sign):
    said, other = ("data-noise", "noise-data") if sign > 0 else ("noise-data", "data-noise")
    schedule = thg.Schedule.flow(STEPS, time=(1, 0), velocity=said)
    with pytest.raises(thg.errors.ScheduleError, match=f"the sign is reversed. Write .*velocity='{other}'"):
        mistaken(flow_network("flow", (1, 0), sign), schedule)
    mistaken(flow_network("flow", (1, 0), sign), schedule, check=False)


def test_a_score_is_not_eps():
    def score(x, t, label):
        alpha, sigma = level(round(t))
        return -outputs("epsilon")(x, alpha, sigma, label) / sigma

    with pytest.raises(thg.errors.ScheduleError, match=r"A score is -eps / sigma: return -sigma \* score"):
        mistaken(score, thg.Schedule.from_betas(BETAS, STEPS))


def test_start_states_of_another_size():
    schedule = thg.Schedule.edm(STEPS)
    with pytest.raises(
        thg.errors.ScheduleError, match=r"root mean square of 1.*standard deviation 80.*x = 80 \* torch.randn"
    ):
        mistaken(lambda x, sigma, label: denoised(x, 1.0, sigma, label), schedule, x=noise())


@pytest.mark.parametrize(
    ("is_of", "said"), [("sample", "epsilon"), ("epsilon", "sample"), ("sample", "flow"), ("flow", "v_prediction")]
)
def test_another_kind_of_output_is_told_of(is_of, said):
    schedule = thg.Schedule.vp(STEPS, prediction=said)

    def network(x, t, label):
        return outputs(is_of)(x, *(float(v) for v in schedule.curve.levels(np.asarray(t))), label)

    with pytest.warns(UserWarning, match=f"it does not predict '{said}'"):
        mistaken(network, schedule)


def test_a_time_of_another_scale_is_told_of():
    """A network on [0, 1] that is told 1000 gives NaN, or something that is no velocity."""

    def breaks(x, t, label):
        return flow_network("flow", (1, 0))(x, t, label) * (math.nan if t > 1 else 1.0)

    with pytest.raises(
        thg.errors.NonFiniteError, match=r"step 0 \(time 1000\).*the time passed to the network was 1000: if it uses"
    ):
        mistaken(breaks, thg.Schedule.flow(STEPS, time=(1000, 0)))

    def embeds(x, t, label):
        return flow_network("flow", (1, 0))(x, 0.3 if t > 1 else t, label)  # whatever an embedding makes of it

    with pytest.warns(UserWarning, match="which is 1000 at noise"):
        mistaken(embeds, thg.Schedule.flow(STEPS, time=(1000, 0)))


@pytest.mark.parametrize("path", ["vp", "edm", "flow"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_alarm_where_all_is_well(path, kind, recwarn):
    for seed in range(5):
        schedule = {
            "vp": lambda: thg.Schedule.vp(2, prediction=kind),
            "edm": lambda: thg.Schedule.edm(2, prediction=kind),
            "flow": lambda: thg.Schedule.flow(2, time=(1, 0), prediction=kind),
        }[path]()
        node = schedule.nodes[0]
        x = node.sigma * noise(1, seed)
        x0 = denoised(x, node.alpha, node.sigma, labels(1))
        on_x0, on_eps = content(node, kind)
        thg.ode.network.examine(schedule, node, x, on_x0 * x0 + on_eps * (x - node.alpha * x0) / node.sigma)
    assert not recwarn.list
