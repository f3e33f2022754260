"""Algorithm 3: the estimate against the true local error, and its first-order short form against the general one."""

import numpy as np
import pytest
import torch

from tests.core.problems import GUIDANCE, LABEL, SOLVERS, exact_flow, mixture, noise, schedule
from thg.ode.richardson import error_constants, error_constants_first_order
from thg.ode.schedule import Schedule
from thg.ode.solvers import Track, ddim, step


def run(grid, solver, model=None):
    return error_constants((model or mixture()).denoiser(grid, LABEL), noise(), grid, solver, guidance_scale=GUIDANCE)


def true_local_errors(grid, solver, at):
    """|| x^(1) - x || of tortoise and hare over the step (or the pair of steps) that begins at index `at`."""
    model = mixture().denoiser(grid, LABEL)
    tortoise, hare = Track(noise()), Track(torch.zeros_like(noise()))
    start = (tortoise, hare)
    for i in range(at + solver.stages):
        if i == at:
            start = (tortoise, hare)
        node, landing = grid.nodes[i], grid.landings[i]
        whole = tortoise.x + hare.x
        e_c, e_u = model(whole, node.time, True), model(whole, node.time, False)
        tortoise = step(tortoise, solver, node, e_c, landing, grid.normal)
        hare = step(hare, solver, node, (GUIDANCE - 1) * (e_c - e_u), landing, grid.normal)
    exact = exact_flow(grid.nodes[at], grid.nodes[at + solver.stages], start[0].x, start[1].x)
    norms = [(track.x - x).norm(dim=1).numpy() for track, x in zip((tortoise, hare), exact, strict=True)]
    return [norm / solver.stages for norm in norms]


@pytest.mark.parametrize("name", SOLVERS)
def test_the_estimate_over_the_true_local_error_tends_to_one(name):
    solver = SOLVERS[name]
    distance = []
    for steps in (24, 96):
        grid = schedule(steps)
        at = steps // 2
        estimates = [errors[at] for errors in run(grid, solver).local_errors()]
        true = true_local_errors(grid, solver, at)
        distance.append(max(np.abs(np.array(estimates) / np.array(true) - 1).max(axis=1)))
    assert distance[1] < 0.08
    assert distance[1] < 0.5 * distance[0]


@pytest.mark.parametrize(
    "grid",
    [schedule(30), Schedule.flow(20, time=(1, 0), shift=2.0), Schedule.from_betas(np.linspace(1e-4, 0.02, 1000), 25)],
)
def test_the_first_order_short_form_is_the_general_form(grid):
    model = mixture().denoiser(grid, LABEL)
    general = error_constants(model, noise(), grid, ddim(), guidance_scale=GUIDANCE)
    short = error_constants_first_order(model, noise(), grid, guidance_scale=GUIDANCE)
    assert np.allclose(short.tortoise, general.tortoise, rtol=1e-6, atol=1e-12)
    assert np.allclose(short.hare, general.hare, rtol=1e-6, atol=1e-12)


def test_the_ratio_needs_no_schedule():
    """What the planner uses: || e_c(x_i) - e_c(x_m) || / ((w - 1) || d(x_i) - d(x_m) ||)."""
    grid = schedule(10)
    seen = {True: [], False: []}
    model = mixture().denoiser(grid, LABEL)

    def spy(x, t, conditional):
        output = model(x, t, conditional)
        seen[conditional].append(output)
        return output

    constants = error_constants_first_order(spy, noise(), grid, guidance_scale=GUIDANCE)
    e_c, d = seen[True], [c - u for c, u in zip(seen[True], seen[False], strict=True)]
    for i in range(10):
        tortoise = (e_c[2 * i] - e_c[2 * i + 1]).norm(dim=1)
        hare = (GUIDANCE - 1) * (d[2 * i] - d[2 * i + 1]).norm(dim=1)
        assert np.allclose(constants.tortoise[i] / constants.hare[i], tortoise / hare)


def test_one_norm_per_step_and_sample():
    constants = run(schedule(12), ddim())
    assert constants.tortoise.shape == constants.hare.shape == (12, 4)
    alone = error_constants_first_order(
        mixture().denoiser(schedule(12), LABEL), noise()[2:3], schedule(12), guidance_scale=GUIDANCE
    )
    assert np.allclose(alone.tortoise[:, 0], constants.tortoise[:, 2])


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("steps", [7, 8])
def test_every_step_gets_a_constant_along_the_cfg_trajectory(name, steps):
    grid = schedule(steps)
    calls = []
    model = mixture().denoiser(grid, LABEL)

    def counting(x, t, conditional):
        calls.append(t)
        return model(x, t, conditional)

    constants = error_constants(counting, noise(), grid, SOLVERS[name], guidance_scale=GUIDANCE)
    assert constants.tortoise.shape[0] == steps
    assert np.all(constants.tortoise > 0)
    assert np.all(constants.hare > 0)
    assert constants.order == SOLVERS[name].order
    extra = 2 * (steps // 2) if SOLVERS[name].stages == 2 else 0  # the pair's own second node, on the half-step path
    assert len(calls) == 4 * steps + extra
