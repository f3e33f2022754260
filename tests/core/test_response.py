"""The corrector in the guidance: the same states as those of a corrector that rewrites the state and all memory."""

import math

import numpy as np
import pytest
import torch

from tests.core.problems import GUIDANCE, LABEL, SOLVERS, mixture, noise, schedule
from thg.ode.integrate import sample, solver_response
from thg.ode.solvers import Track, ddim, lms, plms, step
from thg.plans.guide import HareGuide
from thg.plans.leaps import predicted
from thg.plans.plan import Plan
from thg.plans.response import Response
from thg.plans.run_info import RunInfo

ALL = {**SOLVERS, "lms of order 4": lms(4), "plms of order 4": plms(4)}
COARSE = (0, 1, 3, 6, 8, 11, 15, 19)


def state_corrected(plan, grid, solver):
    """The reference: at a fresh term, what the leap made of the missing amounts is added to the state and to whatever
    the solver remembers."""
    model = mixture().denoiser(grid, LABEL)
    track, positions, terms = Track(noise()), [], []
    for i in range(plan.steps):
        node = grid.nodes[i]
        e_c, e_u = (grid.normalise(track.x, model(track.x, node.time, c), node) for c in (True, False))
        if plan.evaluates(i):
            fresh = e_c - e_u
            if positions and i - positions[-1] > 1:
                track = _rewritten(track, plan, grid, solver, [*positions, i], [*terms, fresh])
            positions, terms = [*positions, i][-plan.hare_order :], [*terms, fresh][-plan.hare_order :]
        d = predicted(positions, terms, i, plan.hare_order)
        track = step(track, solver, node, e_c + (GUIDANCE - 1) * d, grid.landings[i], grid.normal)
    return track.x


def _rewritten(track, plan, grid, solver, positions, terms):
    *before, fresh = positions
    second = before[-1] + 1
    zero = torch.zeros((), dtype=torch.float64)
    response = Track(zero, grid.nodes[:second], (zero,) * min(second, solver.memory - 1))
    for k in range(second, fresh):
        amount = plan.corrector * (GUIDANCE - 1) * math.prod(k - position for position in before) + zero
        response = step(response, solver, grid.nodes[k], amount, grid.landings[k], grid.normal)
    weights = [1 / math.prod(own - other for other in positions if other != own) for own in positions]
    divided = sum(weight * term for weight, term in zip(weights, terms, strict=True))
    outputs = tuple(m + r * divided for m, r in zip(track.outputs, response.outputs, strict=True))
    return Track(track.x + response.x * divided, track.path, outputs)


@pytest.mark.parametrize("hare_order", [1, 2])
@pytest.mark.parametrize("name", ALL)
def test_it_is_the_corrector_of_the_state(name, hare_order):
    grid = schedule(24)
    plan = Plan(24, COARSE, hare_order=hare_order, corrector=0.8)
    model = mixture().denoiser(grid, LABEL)
    ours = sample(model, noise(), plan, grid, ALL[name], guidance_scale=GUIDANCE).x
    without = sample(
        model, noise(), Plan(24, COARSE, hare_order=hare_order), grid, ALL[name], guidance_scale=GUIDANCE
    ).x
    expected = state_corrected(plan, grid, ALL[name])
    tolerance = 1e-10 if ALL[name].memory == 1 else 0.02
    assert float((ours - expected).norm()) < tolerance * float((without - expected).norm())


@pytest.mark.parametrize("name", ALL)
def test_corrections_settle_the_final_state_and_all_states_on_the_way(name):
    response = solver_response(ALL[name], schedule(24))
    amounts = np.array([0.0, 1.0, 2.0])
    gains = response.corrections(6, amounts[:, None])[:, 0]
    owed = response.matrix[9:, 6:9] @ amounts
    paid = response.matrix[9:, 9 : 9 + len(gains)] @ gains
    assert paid[-1] == pytest.approx(owed[-1], rel=1e-9)
    assert np.abs(paid - owed).max() < 0.2 * np.abs(owed).max()
    assert len(gains) <= 8
    if ALL[name].memory == 1:
        assert gains.tolist() == pytest.approx([float(owed[-1] / response.final[9])])


def test_responses_of_ddim_are_its_steps_in_sigma_over_alpha():
    grid = schedule(9)
    ratios = [node.sigma / node.alpha for node in grid.nodes]
    expected = np.diff(ratios) * grid.nodes[-1].alpha
    assert solver_response(ddim(), grid).final == pytest.approx(expected.tolist())


def test_known_at_the_end_alone():
    response = Response.one_step([4.0, 2.0, 1.0, 0.5])
    assert response.final == (4.0, 2.0, 1.0, 0.5)
    assert response.corrections(0, np.array([[0.0, 1.0], [3.0, 0.0]])).tolist() == [[6.0, 4.0]]  # two directions


def test_an_error_counts_with_what_remains_of_it():
    """Adams-Bashforth takes back a third of an output's effect in the next step; an Euler step keeps all of it."""
    count, h = 12, 0.1
    euler = Response(np.tril(np.full((count, count), h)))
    adams = Response(np.tril(np.full((count, count), h)) + np.diag(np.full(count, h / 2)))
    missed = np.array([[0.0], [1.0], [2.0]])
    assert adams.input_error(4, missed) == pytest.approx(euler.input_error(4, missed))
    assert euler.input_error(4, missed) == pytest.approx(3 * h)


def test_a_solver_that_forgets_counts_with_the_effect_of_now():
    """For a network that predicts the data, the last step replaces the state."""
    forgets = Response(np.diag([1.0, 1.0, 1.0, 1.0]))
    assert forgets.input_error(1, np.array([[0.0], [2.0]])) == pytest.approx(2.0)


def test_a_call_without_effect_carries_nothing():
    """The first stage of a midpoint method moves a state that is thrown away."""
    matrix = np.array([[1.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 2.0, 1.0, 0], [0, 2.0, 0, 2.0]])
    gains = Response(matrix).corrections(1, np.ones((1, 1)))
    assert gains.tolist() == [[2.0], [1.0]]
    assert Response(np.zeros((3, 3))).corrections(0, np.ones((2, 1))).tolist() == [[0.0]]


def test_a_call_with_little_effect_carries_nothing():
    """Some starts of multistep methods evaluate twice at almost the same time: the correction was sixty times what was
    missing, and the run went astray (29 dB instead of 55)."""
    matrix = np.tril(np.broadcast_to([1.0, 1.0, 0.02, 1.0, 1.0], (5, 5)))
    assert Response(matrix).corrections(1, np.ones((1, 1))).tolist() == [[0.0], [1.0]]
    smaller = np.tril(np.broadcast_to(0.05 ** np.arange(5), (5, 5)))  # the steps of such a run, and not one call
    assert Response(smaller).corrections(1, np.ones((1, 1)))[0] == pytest.approx([20.0])


def test_without_a_response_there_is_no_correction():
    terms = [torch.tensor([float(i * i)]) for i in range(6)]

    def used(run):
        guide = HareGuide(Plan(6, (0, 2, 5), corrector=1.0), run)
        result = []
        for i, term in enumerate(terms):
            if guide.evaluates(i):
                result.append(float((guide.observe(i, (term,), (term,)) or (term,))[0]))
            else:
                result.append(float(guide.predict(i, (term,))[0]))
        return result

    plain = used(RunInfo.of(6))
    assert plain == [0.0, 0.0, 4.0, 6.0, 8.0, 25.0]
    unit = RunInfo(6, tuple(map(float, range(6))), response=Response(np.tril(np.ones((6, 6)))))
    corrected = used(unit)
    assert corrected[0:2] == plain[0:2]
    assert corrected[2] == pytest.approx(4.0 + 2.0)  # held at 0 where the line through 0 and 4 says 2
    assert corrected[5] == pytest.approx(25.0 + (9 - 6) + (16 - 8))  # the parabola through 0, 4 and 25
