"""The dial: evaluations for a tolerance, and where they go."""

import math
from dataclasses import replace
from itertools import combinations, pairwise

import diffusers
import numpy as np
import pytest

import thg
from thg.ode.integrate import run_of
from thg.pipelines.describe import describe, known_run
from thg.plans.planners import guide_maker
from thg.plans.response import Response
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import (
    PRIOR,
    evaluations_within,
    grid,
    hardness,
    leap_weights,
    most_steps,
    predicted_error,
)


def flow_run(steps: int, shift: float = 1.0, last: float = 0.0, w: float | None = 5.0) -> RunInfo:
    """A run of the Euler scheduler of flow models. last: the noise level before the last step, if not one step's."""
    sigmas = np.linspace(1, 1 / steps, steps)
    sigmas = np.append(shift * sigmas / (1 + (shift - 1) * sigmas), 0.0)
    sigmas[-2] = last or sigmas[-2]
    levels = np.maximum(sigmas[:-1], 1e-9)
    log_snr = tuple((2 * np.log(np.maximum(1 - levels, 1e-9) / levels)).tolist())
    return replace(RunInfo.of(steps, w), response=Response.one_step(np.diff(sigmas).tolist()), log_snr=log_snr)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 10, 20, 28, 50, 100, 1000])
@pytest.mark.parametrize("w", [None, 0.5, 1.0, 3.0, 5.0, 7.5, 30.0])
def test_every_run_gets_a_plan_that_evaluates_its_ends(steps, w):
    for error in (1e-6, 0.001, 0.01, 0.1, 0.9):
        for run in (RunInfo.of(steps, w), flow_run(steps, w=w)):
            plan = thg.within(error).plan(run)
            assert plan.steps == steps
            assert plan.coarse[0] == 0
            assert plan.coarse[-1] == steps - 1
            assert plan.evaluations == evaluations_within(error, run)


def test_the_tolerance_and_hardly_the_steps_change_the_number_of_evaluations():
    counts = [evaluations_within(0.01, flow_run(steps)) for steps in (20, 28, 50, 100, 1000)]
    assert counts == sorted(counts)
    assert counts[:4] == [13, 16, 18, 20]
    assert [evaluations_within(0.01, flow_run(steps, w=7.5)) for steps in (20, 28, 50, 100)] == [16, 19, 22, 24]
    finer = [evaluations_within(error, flow_run(1000)) for error in (0.1, 0.03, 0.01, 0.003, 0.001)]
    assert finer == sorted(set(finer))


def test_everything_is_evaluated_if_noise_is_added():
    run = replace(RunInfo.of(20, 5.0), adds_noise=True)
    assert thg.within().plan(run).coarse == thg.tapered(0.5).plan(run).coarse == tuple(range(20))


def test_a_tolerance_of_almost_nothing_is_plain_guidance():
    assert thg.within(1e-9).plan(RunInfo.of(30, 5.0)).coarse == tuple(range(30))


@pytest.mark.parametrize(("nfe", "steps"), [(20, 50), (30, 75), (40, 100), (55, 135), (100, 200)])
def test_a_budget_takes_five_steps_for_each_evaluated_one(nfe, steps):
    assert most_steps(nfe, flow_run) == steps
    assert most_steps(nfe, lambda count: replace(flow_run(count), adds_noise=True)) == nfe // 2


def test_too_small_a_budget_is_refused():
    with pytest.raises(thg.PlanError, match="too few for two steps"):
        most_steps(3, flow_run)


def random_run(steps: int, seed: int = 0) -> RunInfo:
    """A run with uneven noise levels and responses."""
    rng = np.random.default_rng(seed)
    log_snr = tuple(np.sort(rng.uniform(-8, 6, steps)).tolist())
    return replace(RunInfo.of(steps), response=Response.one_step(rng.uniform(0.2, 3, steps)), log_snr=log_snr)


def total(weights: np.ndarray, steps: tuple[int, ...]) -> float:
    return float(sum(weights[leap] for leap in pairwise(steps)))


@pytest.mark.parametrize("seed", range(6))
def test_no_other_grid_weighs_less(seed):
    run = random_run(10, seed)
    weights = leap_weights(run)
    for count in range(3, 11):
        grids = [(0, 1, *inner, 9) for inner in combinations(range(2, 9), count - 3)]
        found = grid(run, count)
        assert found in grids
        assert total(weights, found) <= min(total(weights, other) for other in grids) * (1 + 1e-9)


def test_leaps_are_short_where_outputs_have_a_large_response():
    sigmas = np.linspace(1, 0, 61)
    even = flow_run(60)
    falling = replace(even, response=Response.one_step((np.diff(sigmas) * np.linspace(30, 0.1, 60)).tolist()))
    early = [sum(step < 30 for step in grid(run, 16)) for run in (even, falling)]
    assert early[1] > early[0]


@pytest.mark.parametrize("steps", [20, 28, 50])
def test_a_larger_budget_never_weighs_more(steps):
    run = random_run(steps)
    weights = [total(leap_weights(run), grid(run, count)) for count in range(12, steps + 1)]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] == 0.0


def test_strong_guidance_moves_evaluations_to_the_start():
    early = [sum(step < 10 for step in grid(flow_run(50, w=w), 22)) for w in (None, 5.0, 7.5, 1000.0)]
    assert early[0] == early[1] < early[2] == early[3]


def test_a_solver_that_amplifies_outputs_gets_more_evaluations():
    """A network that predicts noise, on a schedule that begins with almost none of the signal."""
    usual = flow_run(50)
    amplifying = replace(usual, response=Response.one_step([3.0] * 50))
    assert usual.response.total == pytest.approx(1.0)
    assert evaluations_within(0.01, amplifying) > evaluations_within(0.01, usual)


def noise_run(steps: int, **levels: bool) -> RunInfo:
    scheduler = diffusers.DPMSolverMultistepScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", **levels
    )
    scheduler.set_timesteps(steps)
    return describe(scheduler, scheduler.timesteps)


@pytest.mark.parametrize("steps", [20, 28, 50, 100])
@pytest.mark.parametrize("levels", ["use_karras_sigmas", "use_exponential_sigmas"])
def test_hard_noise_levels_get_more_evaluations(steps, levels):
    """Until the predicted error of the leaps is what usual levels have, and not more than that."""
    usual, hard = noise_run(steps), noise_run(steps, **{levels: True})
    assert hardness(usual) == 1.0
    count, more = evaluations_within(0.01, usual), evaluations_within(0.01, hard)
    assert count < more <= 1.3 * count
    allowed = PRIOR.usual * hard.response.total**PRIOR.power_of_response
    assert predicted_error(hard, grid(hard, more)) <= allowed < predicted_error(hard, grid(hard, more - 1))


@pytest.mark.parametrize("steps", [20, 28, 50, 100])
@pytest.mark.parametrize("name", ["EulerDiscreteScheduler", "DPMSolverMultistepScheduler"])
@pytest.mark.parametrize("levels", [{}, {"use_karras_sigmas": True}])
def test_noise_levels_are_as_hard_for_every_kind_of_output(steps, name, levels):
    counts = []
    for kind in ("epsilon", "v_prediction", "sample"):
        scheduler = getattr(diffusers, name)(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type=kind, **levels
        )
        counts.append(evaluations_within(0.01, known_run(scheduler, steps)))
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("steps", [20, 28, 50, 100])
@pytest.mark.parametrize("name", ["EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"])
@pytest.mark.parametrize("size", [0.5, 1.0])
def test_the_levels_of_edm_are_as_hard_with_its_preconditioning_as_for_noise(steps, name, size):
    preconditioned = known_run(getattr(diffusers, name)(sigma_data=size), steps)
    noise = run_of(thg.Schedule.edm(steps, prediction="epsilon"), thg.ode.ddim(), 1.0)
    counts = [evaluations_within(0.01, run) for run in (preconditioned, noise)]
    assert abs(counts[0] - counts[1]) <= 1
    assert min(counts) > evaluations_within(0.01, noise_run(steps))


@pytest.mark.parametrize("steps", [20, 28, 50])
def test_a_solver_of_high_order_gets_more_evaluations(steps):
    """PNDM and LMS have order 4."""
    counts = [evaluations_within(0.01, replace(flow_run(steps), order=order)) for order in (1, 2, 3, 4)]
    assert counts[0] == counts[1] < counts[2] < counts[3] <= math.ceil(1.5 * counts[0])


def test_the_predicted_error_grows_with_the_square_of_the_leaps():
    """That of one leap with its cube: level, angle and skipped response are all proportional to its length."""
    run = flow_run(1024)
    errors = [predicted_error(run, (*range(256), *range(256, 768, every), *range(768, 1024))) for every in (16, 32, 64)]
    assert np.log2(np.divide(errors[1:], errors[:-1])) == pytest.approx(2.0, abs=0.15)


def test_outputs_that_the_final_state_forgets_still_have_a_grid():
    """A network that predicts the data: the last output is the result."""
    forgetful = replace(flow_run(50), response=Response.one_step([0.0] * 49 + [1.0]))
    steps = grid(forgetful, 18)
    assert max(b - a for a, b in pairwise(steps)) <= 6


def test_uneven_steps_move_the_grid():
    """With shift 3 most of the way is made at the end of the run, so leaps are shorter there than with even steps."""
    even, shifted = (grid(flow_run(50, shift), 14) for shift in (1.0, 3.0))
    assert sum(i >= 25 for i in shifted) > sum(i >= 25 for i in even)


def test_the_noise_levels_of_edm_do_not_leave_the_end_unevaluated():
    """From 80 to 0.002 the first steps move the state most, and the picture is made by the last ones."""
    rho = 7.0
    sigmas = (80 ** (1 / rho) + np.linspace(0, 1, 30) * (0.002 ** (1 / rho) - 80 ** (1 / rho))) ** rho
    run = replace(
        RunInfo.of(30),
        response=Response.one_step(np.diff(np.append(sigmas, 0)).tolist()),
        log_snr=tuple((-2 * np.log(sigmas)).tolist()),
    )
    steps = grid(run, 15)
    assert max(b - a for a, b in pairwise(steps)) <= 4
    assert sum(step >= 15 for step in steps) >= 6


@pytest.mark.parametrize("count", [3, 5, 14, 27, 28])
def test_the_first_three_steps_and_the_last_are_evaluated(count):
    for run in (RunInfo.of(28), flow_run(28), flow_run(28, last=0.001)):
        steps = grid(run, count)
        assert len(steps) == count
        assert steps[:2] == (0, 1)
        assert (steps[2] == 2) == (count >= 12)
        assert steps[-1] == 27


def test_without_a_corrector_there_are_more_evaluations():
    assert thg.within().plan(RunInfo.of(50)).evaluations > thg.within().plan(flow_run(50)).evaluations


@pytest.mark.parametrize("error", [0, -0.1, 1, 1.5, float("nan"), True, "0.01", None])
def test_what_is_no_tolerance_is_refused(error):
    with pytest.raises(thg.PlanError, match=r"thg\.within\(0\.01\)"):
        thg.within(error)


def test_it_is_the_default():
    assert guide_maker(None) == guide_maker(thg.within(0.01))
