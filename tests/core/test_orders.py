"""The order of every solver, and what becomes of it under guidance with a coarse hare (fitted on an exact problem)."""

import math

import pytest

from tests.core.problems import GUIDANCE, LABEL, SOLVERS, mixture, noise, reference, schedule
from thg.ode.integrate import sample
from thg.plans.plan import Plan

TOLERANCE = 0.15
TAIL = (80, 160)


def run(steps, solver, leap, hare_order=2, form="predictor"):
    grid = schedule(steps)
    plan = Plan(steps, range(0, steps, leap), hare_order=hare_order)
    return sample(mixture().denoiser(grid, LABEL), noise(), plan, grid, solver, guidance_scale=GUIDANCE, form=form).x


def order(error):
    coarse, fine = (float(error(steps).norm()) for steps in TAIL)
    return math.log(coarse / fine) / math.log(TAIL[1] / TAIL[0])


@pytest.mark.parametrize("name", SOLVERS)
def test_cfg_has_the_order_of_its_solver(name):
    solver = SOLVERS[name]
    assert order(lambda n: run(n, solver, leap=1) - reference()) == pytest.approx(solver.order, abs=TOLERANCE)


@pytest.mark.parametrize("leap", [2, 4])
@pytest.mark.parametrize("name", SOLVERS)
def test_algorithm_1_keeps_the_order_of_its_solver(name, leap):
    solver = SOLVERS[name]
    found = order(lambda n: run(n, solver, leap, form="two-state") - reference())
    assert found == pytest.approx(solver.order, abs=TOLERANCE)


@pytest.mark.parametrize("name", ["plms", "dpm++ multistep", "dpm singlestep"])
def test_a_held_hare_brings_a_second_order_solver_down_to_one(name):
    found = order(lambda n: run(n, SOLVERS[name], leap=2, hare_order=1) - reference())
    assert found == pytest.approx(1, abs=TOLERANCE)


@pytest.mark.parametrize("name", [name for name, solver in SOLVERS.items() if solver.order == 2])
def test_an_extrapolated_hare_keeps_order_two(name):
    found = order(lambda n: run(n, SOLVERS[name], leap=2, hare_order=2) - reference())
    assert found == pytest.approx(2, abs=TOLERANCE)


@pytest.mark.parametrize("hare_order", [1, 2])
def test_distance_to_cfg_on_the_same_grid_falls_with_the_order_of_the_hare(hare_order):
    solver = SOLVERS["ddim"]
    found = order(lambda n: run(n, solver, 2, hare_order) - run(n, solver, 1))
    assert found == pytest.approx(hare_order, abs=TOLERANCE)
