"""The optimal grid against brute force, and its predicted error against the error of a run."""

import itertools

import numpy as np
import pytest
import torch

from thg import Plan, PlanError
from thg.ode.integrate import sample
from thg.ode.schedule import Schedule
from thg.ode.solvers import ddim
from thg.plans.leaps import lagrange_weights, prediction_weights
from thg.profiles.planner import leap_costs, noise_share, optimal_grid, output_weight, state_at

ORDERS = pytest.mark.parametrize(
    ("hare_order", "corrector", "slope"),
    [(1, 0.0, 1.0), (2, 0.0, 1.0), (1, 0.7, 1.0), (2, 0.7, 1.0), (2, 0.0, 0.6), (2, 0.7, 0.6)],
)


def random_problem(steps, seed=0):
    rng = np.random.default_rng(seed)
    terms = np.cumsum(rng.normal(size=(steps, 5)), axis=0)
    return terms, terms @ terms.T, rng.uniform(0.5, 1.5, steps)


def error_of_leap(terms, gain, i, j, end, hare_order, corrector, slope):
    """Written down step by step: what is used (and corrected afterwards) against what is true."""
    known = [j] if i < 0 else [i, j]
    error = np.zeros(terms.shape[1])
    for k in range(j + 1, end):
        weights = prediction_weights(known, k, hare_order, slope)
        used = sum(w * terms[m] for w, m in zip(weights, known[-len(weights) :], strict=True))
        if corrector and end < len(terms):
            nodes = [*known, end][-1 - hare_order :]
            through = sum(w * terms[m] for w, m in zip(lagrange_weights(nodes, k), nodes, strict=True))
            used = (1 - corrector) * used + corrector * through
        error += gain[k] * (used - terms[k])
    return error


@ORDERS
def test_costs_are_the_squares_of_the_errors_step_by_step(hare_order, corrector, slope):
    steps = 7
    terms, gram, gain = random_problem(steps)
    cost = leap_costs(gram, gain, hare_order=hare_order, corrector=corrector, slope=slope)
    for j in range(steps):
        for i in [-1] if j == 0 else range(j):
            for end in range(j + 1, steps + 1):
                error = error_of_leap(terms, gain, i, j, end, hare_order, corrector, slope)
                assert cost[i + 1, j, end] == pytest.approx(error @ error, rel=1e-8, abs=1e-8)


@ORDERS
def test_the_grid_is_the_best_of_all(hare_order, corrector, slope):
    steps = 8
    _, gram, gain = random_problem(steps, seed=3)
    cost = leap_costs(gram, gain, hare_order=hare_order, corrector=corrector, slope=slope)

    def total(grid):
        before = (-1, *grid)
        return sum(cost[i + 1, j, end] for i, j, end in zip(before, grid, (*grid[1:], steps), strict=False))

    for count in range(1, steps + 1):
        grid, error = optimal_grid(gram, gain, count, hare_order=hare_order, corrector=corrector, slope=slope)
        best = min(total((0, *rest)) for rest in itertools.combinations(range(1, steps), count - 1))
        assert len(grid) == count
        assert grid[0] == 0
        assert total(grid) == pytest.approx(best)
        assert error == pytest.approx(best)


def test_calls_at_one_time_share_their_position():
    _, gram, gain = random_problem(6)
    grid, _ = optimal_grid(
        gram, gain, 3, hare_order=2, corrector=0.5, positions=np.array([0.0, 1.0, 1.0, 2.0, 2.0, 3.0])
    )
    assert len(grid) == 3


def test_a_grid_of_no_evaluations_is_refused():
    _, gram, gain = random_problem(4)
    with pytest.raises(PlanError, match="1 to 4 evaluations, not 5"):
        optimal_grid(gram, gain, 5, hare_order=1)


@pytest.mark.parametrize("hare_order", [1, 2])
@pytest.mark.parametrize("kind", ["flow", "vp"])
def test_predicted_error_is_the_measured_one_where_the_model_is_linear(kind, hare_order):
    """A network whose outputs depend on time alone: the error of a run is what the Gram matrix says, exactly."""
    schedule, w = (Schedule.flow(12, time=(1000, 0)) if kind == "flow" else Schedule.vp(12)), 3.0
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    index = {round(float(node.time), 9): i for i, node in enumerate(schedule.nodes)}

    def denoiser(x, t, conditional, /):
        d = terms[index[round(float(t), 9)]]
        return (d if conditional else torch.zeros_like(d)).expand_as(x)

    noise = noise_share(schedule.log_snr)
    predicted_kind = "flow" if kind == "flow" else "epsilon"
    response = [output_weight(predicted_kind, a, b) for a, b in itertools.pairwise(noise)]
    last = state_at(predicted_kind, noise[-1]).alpha
    alphas = np.array([state_at(predicted_kind, share).alpha for share in noise[1:]])
    survival = np.ones(12) if kind == "flow" else last / alphas  # of a linear model: nothing, or the scale of the state
    gain = (w - 1) * np.array(response) * survival

    coarse = (0, 1, 2, 3, 4, 5, 9, 10, 11)  # one leap longer than a step
    x = torch.zeros(1, 6, dtype=torch.float64)
    run = {
        name: sample(denoiser, x, plan, schedule, ddim(), guidance_scale=w).x
        for name, plan in (("cfg", Plan(12, range(12))), ("plan", Plan(12, coarse, hare_order=hare_order)))
    }
    measured = float((run["plan"] - run["cfg"]).norm())
    cost = leap_costs((terms @ terms.T).numpy(), gain, hare_order=hare_order)
    assert np.sqrt(cost[4 + 1, 5, 9]) == pytest.approx(measured, rel=1e-4)
