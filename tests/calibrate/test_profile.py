"""The profile as a value: files, merging, checks; and the plans that follow from it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.calibrate.conftest import SCALE, STEPS
from thg import Plan, PlanError, Profile, ProfileError, look_before_you_leap, m_max
from thg.plans.planners import Planned, guide_maker
from thg.plans.response import Response
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import PRIOR
from thg.profiles.planner import WORST, ProfileOnGrid, noise_share, optimal_grids
from thg.profiles.profile import About, Constants, Moments

RUN = RunInfo.of(STEPS, SCALE)


def made_up(steps=50, samples=6, seed=0, kind="flow", scale=5.0):
    """A profile of smooth random outputs."""
    rng = np.random.default_rng(seed)
    noise = np.linspace(1, 0, steps + 1)
    shapes = rng.normal(size=(samples, 4, 20))
    curves = np.stack([np.cos(k * np.pi * noise[:-1]) for k in range(4)], axis=1)
    terms = np.einsum("nk,skd->snd", curves, shapes)
    rows = rng.uniform(0.5, 1.5, size=(samples, steps - 1))
    return Profile(
        About("P", "Net-1", "model", "S", kind, 1, steps, scale, 0, "2026-01-01", {"thg": "0"}),
        samples,
        noise,
        gram=np.einsum("snd,smd->nm", terms, terms) / samples,
        anchors=(1, steps // 2, steps - 2),
        survival=rng.uniform(0.5, 2, size=3),
        state_norm=100.0,
        constants=Constants(
            times=1000 * noise[:-1],
            middle=(noise[:-2] + noise[1:-1]) / 2,
            tortoise=Moments.of(3 * rows),
            hare=Moments.of(rng.uniform(0.1, 0.6, size=rows.shape)),
            tortoise_rate=Moments.of(rows),
            hare_rate=Moments.of(rows),
        ),
    )


def same(a, b):
    return (a.about, a.samples, a.anchors, a.state_norm) == (b.about, b.samples, b.anchors, b.state_norm) and all(
        np.array_equal(getattr(x, part), getattr(y, part))
        for x, y in ((a.constants.tortoise, b.constants.tortoise), (a.constants.hare_rate, b.constants.hare_rate))
        for part in ("total", "squares", "count")
    )


# -- files


@pytest.mark.parametrize("steps", [12, 160])
def test_a_profile_survives_its_file(tmp_path, steps):
    profile = made_up(steps)
    profile.save(tmp_path / "p.json")
    loaded = Profile.load(tmp_path / "p.json")
    assert same(profile, loaded)
    assert np.array_equal(profile.gram, loaded.gram)
    assert np.array_equal(profile.survival, loaded.survival)


def test_nothing_is_overwritten_without_force(tmp_path):
    profile = made_up(12)
    profile.save(tmp_path / "p.json")
    with pytest.raises(ProfileError, match="exists already"):
        profile.save(tmp_path / "p.json")
    profile.save(tmp_path / "p.json", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


def edited(document, **changes):
    return json.dumps({**document, **changes})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "truncated"),
        (lambda text: "[1, 2]", "the format must be"),
        (lambda text: text.replace("thg-profile-2", "thg-profile-7"), "'thg-profile-7'; calibrate again"),
        (lambda text: edited({k: v for k, v in json.loads(text).items() if k != "about"}), "damaged or was edited"),
        (lambda text: edited(json.loads(text), samples=0), "at least 1 sample"),
        (lambda text: text.replace('"steps": 12', '"steps": 13'), "must have the shape"),
        (lambda text: text.replace('"guidance_scale": 5.0', '"guidance_scale": 0.5'), "must be 1"),
        (lambda text: text.replace('"state_norm": 100.0', '"state_norm": 0'), "state_norm must be above 0"),
        (lambda text: text.replace('"noise": [1.0', '"noise": [NaN'), "NaN or infinity"),
        (lambda text: text.replace('"noise": [1.0', '"noise": [0.1'), "must fall"),
        (lambda text: text.replace('"anchors": [1,', '"anchors": [11,'), "anchors must be increasing"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, damage, message):
    made_up(12).save(tmp_path / "p.json")
    (tmp_path / "p.json").write_text(damage((tmp_path / "p.json").read_text()))
    with pytest.raises(ProfileError, match=message) as caught:
        Profile.load(tmp_path / "p.json")
    assert "\n" not in str(caught.value)


def test_no_file_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(ProfileError, match="thg calibrate --out"):
        Profile.load(tmp_path / "none.json")


def test_moments_do_not_depend_on_the_order_of_samples():
    rows = np.random.default_rng(0).lognormal(sigma=3, size=(9, 5))
    found = Moments.of(rows)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.std, rows.std(axis=0), rtol=1e-9)
    assert np.array_equal(Moments.of(rows[::-1]).total, found.total)


# -- plans


def test_the_paper_s_planner_is_algorithm_2_on_the_mean_norms():
    profile = made_up(20)
    ratio = m_max(profile.constants.tortoise.mean, 4.0 * profile.constants.hare.mean, 1.2, 1)
    plan = profile.planner(rho=1.2, cutoff=15, boost=1.1).plan(RunInfo.of(20, 5.0))
    assert plan == Plan(20, look_before_you_leap([*ratio, 1]), 15, 1.1, hare_order=1)


def test_another_guidance_scale_is_another_rho():
    profile = made_up(30)
    assert profile.planner(rho=1.0).plan(RunInfo.of(30, 5.0)) == profile.planner(rho=1.25).plan(RunInfo.of(30, 6.0))


@pytest.mark.parametrize("hare_order", [1, 2])
@pytest.mark.parametrize("nfe", [0.3, 0.5, 70, 0.9])
def test_budgets_are_kept(hare_order, nfe):
    plan = made_up().planner(nfe=nfe, hare_order=hare_order).plan(RunInfo.of(50, 5.0))
    assert plan.skips == "network"
    assert plan.nfe == (nfe if isinstance(nfe, int) else round(100 * nfe))
    assert (plan.hare_order, plan.corrector, plan.slope) == (hare_order, PRIOR.corrector, PRIOR.slope)
    assert plan.coarse[:2] == (0, 1) or hare_order == 1
    assert plan.coarse[-1] == 49


@pytest.mark.parametrize("nfe", [0.55, 0.65, 70, 0.9])
def test_algorithm_2_at_a_budget_is_the_paper_s_plan_unless_asked_otherwise(nfe):
    planner = made_up().planner(nfe=nfe, method="algorithm2")
    plan, limit = planner.plan(RunInfo.of(50, 5.0)), nfe if isinstance(nfe, int) else round(100 * nfe)
    assert limit - 6 <= plan.nfe <= limit
    assert (planner.skips, plan.skips, plan.hare_order, plan.corrector) == ("unconditional", "unconditional", 1, 0.0)
    other = made_up().planner(nfe=nfe, method="algorithm2", hare_order=2, corrector=0.7).plan(RunInfo.of(50, 5.0))
    assert other == replace(plan, hare_order=2, corrector=0.7)


@pytest.mark.parametrize("steps", [24, 100, 120])
def test_other_step_counts_keep_the_density_of_the_grid(steps):
    profile = made_up()
    run = RunInfo(steps, tuple(map(float, range(steps))), 5.0, tuple(_log_snr(np.linspace(1, 0, steps + 1)[:-1])))
    plan = profile.planner(nfe=0.65).plan(run)
    assert plan.evaluations == round(0.65 * steps)
    own = profile.planner(nfe=0.65).plan(RunInfo.of(50, 5.0))
    mine, other = (np.array([*p.coarse, p.steps]) / p.steps for p in (own, plan))
    spread = np.interp(np.linspace(0, 1, 20), np.linspace(0, 1, len(mine)), mine)
    assert np.abs(np.interp(np.linspace(0, 1, 20), np.linspace(0, 1, len(other)), other) - spread).max() < 0.15


def test_the_same_grid_is_taken_over_as_it_is():
    profile = made_up()
    on_grid = ProfileOnGrid.of(profile, RunInfo.of(50, 5.0))
    np.testing.assert_allclose(on_grid.gram, profile.gram, rtol=1e-12)
    by_noise = ProfileOnGrid.of(profile, replace(RunInfo.of(50, 5.0), log_snr=tuple(_log_snr(profile.noise[:-1]))))
    np.testing.assert_allclose(by_noise.grid_positions, np.arange(50), atol=1e-6)
    np.testing.assert_allclose(noise_share(_log_snr(profile.noise)), profile.noise, atol=1e-12)


def _log_snr(noise):
    with np.errstate(divide="ignore"):
        return 2 * (np.log(1 - noise) - np.log(noise))


@pytest.mark.parametrize("run", [RunInfo.of(200, 5.0), RunInfo.of(50, 20.0), RunInfo.of(10, 5.0)])
def test_far_from_what_was_measured_there_is_a_warning(run):
    with pytest.warns(UserWarning, match="far from what the profile was measured on"):
        made_up().planner(nfe=0.65).plan(run)


def test_another_network_is_refused():
    with pytest.raises(ProfileError, match=r"measured on the network Net-1 .* this pipeline has Net-2"):
        made_up().planner(nfe=0.65).plan(replace(RunInfo.of(50, 5.0), network="Net-2"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of a tolerance, error=0.01, a budget"),
        ({"nfe": 0.65, "rho": 1.0}, "one of a tolerance"),
        ({"nfe": 0.65, "error": 0.01}, "one of a tolerance"),
        ({"error": 1.0}, "error must be a share above 0 and below 1"),
        ({"error": 0.01, "boost": 1.1}, "a tolerance is kept by method='optimal'"),
        ({"nfe": 50, "method": "algorithm2"}, "50 steps need 51 to 100"),
        ({"nfe": 101, "method": "algorithm2"}, "50 steps need 51 to 100"),
        ({"nfe": 0.4, "method": "algorithm2"}, "must lie above 0.5"),
        ({"nfe": 1}, "nfe must be a share"),
        ({"rho": -1.0}, "rho must be above 0"),
        ({"nfe": 0.6, "method": "magic"}, "method must be"),
        ({"nfe": 0.6, "method": "optimal", "cutoff": 30}, "belong to method='algorithm2'"),
        ({"nfe": 0.6, "hare_order": 3}, "hare_order must be"),
        ({"rho": 1.0, "cutoff": 99}, "cutoff must lie"),
    ],
)
def test_impossible_wishes(arguments, message):
    with pytest.raises(PlanError, match=message):
        made_up().planner(**arguments).plan(RunInfo.of(50, 5.0))


def corrected(steps, scale=5.0):
    """A run that the corrector works in."""
    return replace(RunInfo.of(steps, scale), response=Response.one_step([1 / steps] * steps))


@pytest.mark.parametrize("run", [corrected(50), corrected(50, 7.0), corrected(24), corrected(120), RunInfo.of(50, 5.0)])
def test_a_larger_tolerance_takes_fewer_evaluations_and_never_more_than_plain(run):
    counts = [made_up().planner(error=error).plan(run).evaluations for error in (1e-9, 0.003, 0.01, 0.03, 0.3)]
    assert sorted(counts, reverse=True) == counts
    assert counts[0] == run.steps
    assert counts[0] > counts[2] > counts[-1] >= PRIOR.fewest


def test_a_tolerance_is_that_of_the_predicted_error():
    """The grid is the smallest whose predicted error is small enough, and without the corrector it has more steps."""
    profile, error = made_up(), 0.01
    on_grid = ProfileOnGrid.of(profile, RunInfo.of(50, 5.0))

    def predicted(count, corrected):
        squares, weights = profile.planner(error=error)._costs(on_grid, corrected=corrected)
        grid = [grid for grid, _ in optimal_grids(weights)][count - 1]
        leaps = zip((-1, *grid), grid, (*grid[1:], 50), strict=False)
        return WORST * sum(squares[i + 1, j, end] for i, j, end in leaps) ** 0.5 / profile.state_norm

    with_it, without = (profile.planner(error=error).plan(run) for run in (corrected(50), RunInfo.of(50, 5.0)))
    for plan, corrected_run in ((with_it, True), (without, False)):
        assert predicted(plan.evaluations, corrected_run) <= error < predicted(plan.evaluations - 1, corrected_run)
    assert without.evaluations > with_it.evaluations


@pytest.mark.parametrize("given", [{"adds_noise": True}, {"clips": True}])
def test_what_cannot_be_predicted_is_evaluated(given):
    assert made_up().planner(nfe=0.5).plan(replace(corrected(50), **given)).evaluations == 50


@pytest.mark.parametrize("steps", [50, 120])
def test_where_outputs_are_constant_the_grid_follows_the_response_of_the_solver(steps):
    """As the default's does: nothing was measured that tells one leap from another."""
    profile = replace(made_up(), gram=np.ones((50, 50)))
    late = np.where(np.arange(steps) < steps // 2, 0.01, 0.99)
    run = replace(RunInfo.of(steps, 5.0), log_snr=tuple(_log_snr(np.linspace(1, 0, steps + 1)[:-1])))
    plans = [
        profile.planner(nfe=0.4).plan(replace(run, response=Response.one_step((weights / weights.sum()).tolist())))
        for weights in (late[::-1], late)
    ]
    in_first_half = [sum(step < steps // 2 for step in plan.coarse) for plan in plans]
    assert in_first_half[0] > in_first_half[1]


def test_a_profile_is_a_planner_for_the_default_tolerance():
    profile = made_up()
    assert profile.plan(corrected(50)) == profile.planner(error=0.01).plan(corrected(50))
    assert isinstance(guide_maker(profile), Planned)


def test_a_profile_of_an_older_version_has_the_paper_s_planner_only(tmp_path):
    profile = made_up(12)
    profile.save(tmp_path / "old.json")
    document = json.loads((tmp_path / "old.json").read_text())
    document["arrays"] |= {"state.total": [1.0], "state.squares": [1.0], "sensitivity.total": [1.0] * 3}
    (tmp_path / "old.json").write_text(json.dumps({**document, "format": "thg-profile-1"}))
    loaded = Profile.load(tmp_path / "old.json")
    assert loaded.planner(rho=1.0).plan(RunInfo.of(12, 5.0)) == profile.planner(rho=1.0).plan(RunInfo.of(12, 5.0))
    with pytest.raises(ProfileError, match=r"made by thg 0\.1 .* calibrate again"):
        loaded.planner(error=0.01)


def test_a_count_is_one_of_the_run_not_of_the_profile():
    assert made_up().planner(nfe=32).plan(RunInfo.of(25, 5.0)).nfe == 32


def test_a_measured_profile_makes_plans(profile):
    assert profile.planner(nfe=0.7).plan(RUN).nfe == 14
    assert profile.planner(rho=1.0).plan(RUN).hare_order == 1
