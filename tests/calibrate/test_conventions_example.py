"""The example with a network in everybody's convention: the same results, in few lines each."""

import importlib.util
import inspect
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "examples" / "own_denoiser_conventions.py"
NOISE, VP = ("noise_ddpm",), ("v_prediction", "x0_of_ddpm")
FLOW = ("velocity_to_noise", "velocity_to_data", "velocity_of_999", "x0_of_a_flow")


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("own_denoiser_conventions", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(example):
    """Decibels of a plan for anybody and of a calibrated one, to plain CFG; and the evaluations of both."""
    found = {}
    for convention in example.CONVENTIONS:
        plain, fewer, best = convention()
        found[convention.__name__] = (
            [example.decibels(done.x, plain.x) for done in (fewer, best)],
            [done.nfe for done in (plain, fewer, best)],
        )
    return found


@pytest.mark.parametrize("family", [NOISE, VP, FLOW], ids=["noise", "vp", "flow"])
def test_the_result_does_not_depend_on_the_convention(family, results):
    """Of networks in which the same leaps: noise as it is, everything else as a velocity."""
    for name in family:
        assert results[name][0] == pytest.approx(results[family[0]][0], abs=0.05)
        assert results[name][1] == [60, 42, 42]


def test_both_plans_are_close_in_all_of_them(results):
    for (fewer, best), _ in results.values():
        assert fewer > 45
        assert best > 50


def test_an_interval_costs_what_it_guides(example):
    plain, fewer, best = example.guidance_interval()
    guided, evaluations = range(7, 25), best.summary.evaluations  # above 0.2 and up to 0.8
    assert plain.nfe == 30 + len(guided)
    assert best.summary.plan.evaluations == 21  # 70 %; what changes at the ends of the interval is evaluated besides
    assert all(count in (0, 2 if step in guided else 1) for step, count in enumerate(evaluations))
    assert sum(map(bool, evaluations)) >= 21
    assert best.nfe == sum(evaluations)
    assert fewer.nfe < 0.75 * plain.nfe


def test_each_takes_at_most_fifteen_lines(example):
    def lines(function):
        return sum(bool(line.strip()) for line in inspect.getsource(function).splitlines())

    assert max(lines(convention) for convention in example.CONVENTIONS) + lines(example.compare) <= 15
