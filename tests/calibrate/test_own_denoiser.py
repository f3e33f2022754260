"""Calibration of a denoiser of one's own: the same profile in every convention, and what it is good for."""

import math

import numpy as np
import pytest
import torch

import thg
from tests.core.own_network import NONE, denoised, labels, noise, psnr
from tests.core.test_conventions import ALPHAS, BETAS, FLOW, flow_network, outputs
from thg.ode import ddim, dpm_multistep, error_constants_first_order
from thg.plots.charts import plot_profile

STEPS = 16
SCALE = 4.0


def calibrated(network, schedule, samples=6, sigma=1.0, **more):
    given = {"guidance_scale": SCALE, "unconditional": NONE, "sensitivity": 2, "progress": False, **more}
    given.setdefault("algorithm3", "guidance_interval" not in more)
    return thg.calibrate(network, labels(samples), x=sigma * noise(samples), schedule=schedule, **given)


@pytest.fixture(scope="module")
def profile():
    return calibrated(flow_network("flow", (1, 0)), thg.Schedule.flow(STEPS, time=(1, 0)))


def test_it_is_algorithm_3(profile):
    """The norms are those of the paper's error constants, without the factor of the solver."""
    schedule = thg.Schedule.flow(STEPS, time=(1, 0))
    constants = error_constants_first_order(
        flow_network("flow", (1, 0)),
        noise(),
        schedule,
        guidance_scale=SCALE,
        condition=labels(6),
        unconditional=NONE,
    )
    steps = np.array([schedule.node(i + 0.5).sigma - schedule.sigma[i + 1] for i in range(STEPS - 1)])
    assert np.allclose(profile.constants.tortoise.mean, constants.tortoise[:-1].mean(1) / steps, rtol=1e-4)
    assert np.allclose((SCALE - 1) * profile.constants.hare.mean, constants.hare[:-1].mean(1) / steps, rtol=1e-4)
    assert profile.samples == 6
    assert len(profile.anchors) == 8
    assert profile.about.order == 1


@pytest.mark.parametrize("name", FLOW)
def test_the_same_profile_in_every_convention(name, profile):
    network, convention = FLOW[name]
    found = calibrated(network, thg.Schedule.flow(STEPS, **convention))
    for part in ("tortoise", "hare", "hare_rate"):
        if part != "hare_rate":  # a rate is per unit of the network's own time
            assert np.allclose(getattr(found.constants, part).mean, getattr(profile.constants, part).mean, rtol=1e-4)
    assert np.allclose(found.gram, profile.gram, rtol=1e-4, atol=1e-4 * profile.gram.max())
    assert np.allclose(found.survival, profile.survival, rtol=0.02)
    assert found.planner(nfe=0.7).plan(thg.Run.of(STEPS)) == profile.planner(nfe=0.7).plan(thg.Run.of(STEPS))


def test_batches_do_not_matter(profile):
    found = calibrated(flow_network("flow", (1, 0)), thg.Schedule.flow(STEPS, time=(1, 0)), batch_size=5, batched=True)
    assert np.allclose(found.gram, profile.gram, rtol=1e-5, atol=1e-5 * profile.gram.max())
    assert np.allclose(found.constants.tortoise.mean, profile.constants.tortoise.mean, rtol=1e-5)


def test_a_calibrated_plan_is_better(profile):
    """On samples that were not measured, at the same evaluations, against evenly spread ones."""
    schedule = thg.Schedule.flow(STEPS, time=(1, 0))
    x, condition = noise(12, seed=9), labels(12)

    def run(plan):
        return thg.sample(
            flow_network("flow", (1, 0)),
            x,
            plan,
            schedule,
            guidance_scale=SCALE,
            condition=condition,
            unconditional=NONE,
        )

    cfg = run(thg.uniform(every=1)).x
    found = run(profile.planner(nfe=0.75))
    even = run(thg.tapered(0.75, shape=(0, 0)))
    assert found.nfe == even.nfe == 24
    assert psnr(found.x, cfg) > psnr(even.x, cfg)


@pytest.mark.parametrize("solver", [ddim(), dpm_multistep()], ids=["ddim", "dpm++"])
@pytest.mark.parametrize("path", ["betas", "edm"])
def test_other_paths_and_solvers(path, solver):
    if path == "edm":
        schedule, sigma = thg.Schedule.edm(STEPS), 80.0

        def network(x, t, label):
            return denoised(x, 1.0, t, label)

    else:
        schedule, sigma = thg.Schedule.from_betas(BETAS, STEPS, integer_times=True, prediction="v_prediction"), 1.0

        def network(x, t, label):
            assert isinstance(t, int)
            return outputs("v_prediction")(x, ALPHAS[t], math.sqrt(1 - ALPHAS[t] ** 2), label)

    found = calibrated(network, schedule, sigma=sigma, solver=solver)
    assert found.about.order == solver.order
    assert found.about.prediction == "epsilon"
    for planner in (found.planner(nfe=0.7), found.planner(nfe=0.7, method="algorithm2"), found.planner(rho=1.0)):
        done = thg.sample(
            network,
            sigma * noise(),
            planner,
            schedule,
            solver,
            guidance_scale=SCALE,
            condition=labels(6),
            unconditional=NONE,
        )
        assert done.nfe < 2 * STEPS


def test_guidance_in_an_interval():
    network, schedule = flow_network("flow", (1, 0)), thg.Schedule.flow(STEPS, time=(1, 0))
    interval = (0.3, 0.9)
    found = calibrated(network, schedule, guidance_interval=interval)
    run = {"guidance_scale": SCALE, "condition": labels(6), "unconditional": NONE, "guidance_interval": interval}
    cfg = thg.sample(network, noise(), thg.uniform(every=1), schedule, **run)
    assert (cfg.plan.start, cfg.plan.cutoff) == (2, 12)
    fewer = thg.sample(network, noise(), found.planner(nfe=0.75), schedule, **run)
    assert fewer.nfe < cfg.nfe
    assert psnr(fewer.x, cfg.x) > 35
    with pytest.raises(thg.ProfileError, match="guidance_interval be left out"):
        calibrated(network, schedule, guidance_interval=interval, algorithm3=True)


def test_flags_instead_of_conditions():
    def network(x, t, conditional):
        return flow_network("flow", (1, 0))(x, t, torch.full((len(x),), 0 if conditional else NONE))

    found = thg.calibrate(
        network, None, x=noise(3), schedule=thg.Schedule.flow(4, time=(1, 0)), guidance_scale=3.0, progress=False
    )
    assert found.samples == 3


def test_it_goes_on_where_it_was(tmp_path, profile):
    calls = []

    def network(x, t, label):
        calls.append(t)
        return flow_network("flow", (1, 0))(x, t, label)

    schedule = thg.Schedule.flow(STEPS, time=(1, 0))
    first = calibrated(network, schedule, folder=tmp_path / "cal")
    assert calls
    calls.clear()
    again = calibrated(network, schedule, folder=tmp_path / "cal")
    assert not calls
    assert np.array_equal(first.gram, again.gram)
    with pytest.raises(thg.ProfileError, match=r"other settings \(guidance_scale\)"):
        calibrated(network, schedule, folder=tmp_path / "cal", guidance_scale=5.0)
    first.save(tmp_path / "mine.json")
    assert np.array_equal(thg.Profile.load(tmp_path / "mine.json").gram, first.gram)


def test_the_same_plots_as_of_pipelines(profile, tmp_path):
    plan = profile.planner(nfe=0.7).plan(thg.Run.of(STEPS))
    plot_profile(profile, plan, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"x": None}, "needs start states"),
        ({"x": noise(5)}, "6 conditions and 5 start states"),
        ({"schedule": None}, "needs the grid of its runs"),
        ({"guidance_scale": None}, "guidance_scale must be a number of at least 1, not None"),
        ({"guidance_scale": 1.0, "algorithm3": True}, "guidance_scale must be above 1"),
        ({"steps": 7}, "steps=, call= and layout= are for pipelines"),
        ({"schedule": None, "x": None}, r"A denoiser of your own needs schedule= and x="),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_what_cannot_be_calibrated(more, words):
    given = {"x": noise(), "schedule": thg.Schedule.flow(STEPS, time=(1, 0)), "guidance_scale": SCALE, **more}
    with pytest.raises(thg.ProfileError, match=words):
        thg.calibrate(flow_network("flow", (1, 0)), labels(6), unconditional=NONE, progress=False, **given)


def test_a_wrong_sign_is_found_before_anything_is_measured():
    with pytest.raises(thg.ScheduleError, match="the sign is reversed"):
        calibrated(flow_network("flow", (1, 0), -1.0), thg.Schedule.flow(STEPS, time=(1, 0)))
