"""The profile of the loaded model: where it comes from, what its charts show, and that rho moves the grid."""

from __future__ import annotations

import numpy as np
import pytest

import thg
from tests.studio.browsing import PHONE, choose, expect, finish, link, text
from tests.studio.conftest import serve
from tests.studio.wishes import plan_wish
from thg.errors import ProfileError
from thg.studio.engine import Engine
from thg.studio.model import Model
from thg.studio.specs import RunSettings


@pytest.fixture(scope="module")
def profiled(profiled_model):
    with serve(Engine(profiled_model)) as running:
        yield running


@pytest.fixture
def in_the_package(profile, tmp_path, monkeypatch):
    """The package as it is when it ships this profile."""
    (tmp_path / "tiny").mkdir()
    profile.save(tmp_path / "tiny" / "profile.json")
    monkeypatch.setattr("thg.profiles.profile.MODELS", tmp_path)


def test_the_charts_are_the_papers_figures(profiled, profile):
    with profiled.client() as client:
        answer = client.get("/api/profile").json()
    factors = profile.error_factors()
    for branch in ("tortoise", "hare"):
        measured = getattr(profile.constants, branch)
        np.testing.assert_allclose(answer["bounds"][branch]["mean"], factors * measured.mean)
        np.testing.assert_allclose(answer["bounds"][branch]["std"], factors * measured.std)
        np.testing.assert_allclose(answer["rates"][branch]["mean"], getattr(profile.constants, f"{branch}_rate").mean)
    assert (answer["about"]["steps"], answer["about"]["samples"]) == (20, 2)


@pytest.mark.parametrize("spec", [{"rho": 0.8}, {"nfe": 0.7}, {"error": 0.05}], ids=["rho", "budget", "tolerance"])
def test_plans_are_those_of_the_profile(profiled, profile, spec):
    with profiled.client() as client:
        answer = client.post("/api/plan", json=plan_wish(plan={"kind": "profile", **spec})).json()
    run = profiled.engine.model.run(RunSettings(steps=20, guidance_scale=5.0))
    assert thg.Plan.from_dict(answer["plan"]) == profile.planner(**spec).plan(run)


@pytest.mark.filterwarnings("ignore:this run is far")
def test_a_run_far_from_the_profile_is_noted(profiled):
    with profiled.client() as client:
        answer = client.post("/api/plan", json=plan_wish(steps=100, plan={"kind": "profile", "nfe": 0.7})).json()
    assert "100 steps against 20" in answer["note"]


def test_a_shipped_profile_is_found(model, profile, in_the_package):
    found = Model(model.pipe, "tiny", model.source)
    assert found.profile is not None
    assert found.profile.about == profile.about
    assert found.describe()["profile"]


def test_a_larger_tolerance_takes_fewer_evaluations(profiled):
    with profiled.client() as client:
        wishes = [plan_wish(plan={"kind": "profile", "error": error}) for error in (0.01, 0.05)]
        close, far = (client.post("/api/plan", json=wish).json() for wish in wishes)
    assert (close["error"], far["error"]) == (0.01, 0.05)
    assert far["nfe"] < close["nfe"]


def test_the_page_begins_with_the_plan_of_enable(model):
    assert model.describe()["default_plan"] == {"kind": "default", "error": 0.01}


def test_a_profile_of_another_network_is_refused_at_once(profile):
    pipe = thg.shipped_pipeline("eps")
    with pytest.raises(ProfileError, match="measured on the network"):
        Model(pipe, "eps", (), profile=profile)


@pytest.mark.browser
def test_rho_moves_the_grid(opened, profiled, shots):
    page = opened(url=profiled.url)
    page.click("#tab-profile")
    for chart in ("bounds", "rates"):
        for branch in ("tortoise", "hare"):
            page.locator(f"#chart-{chart} path.{branch}.line").wait_for()
            assert page.locator(f"#chart-{chart} path.{branch}.band").count() == 1
    ticks = page.locator("#chart-bounds .tick")
    before = int(text(page, "#profile-nfe"))
    assert ticks.count() == before - 20
    page.screenshot(path=shots / "profile.png", full_page=True)
    page.locator("#rho").focus()
    page.keyboard.press("End")
    expect(page.locator("#rho-value")).to_have_text("10.0")
    expect(page.locator("#profile-nfe")).not_to_have_text(str(before))
    after = int(text(page, "#profile-nfe"))
    assert after < before
    expect(ticks).to_have_count(after - 20)
    wide = page.locator("#chart-bounds svg").get_attribute("viewBox")
    page.set_viewport_size(PHONE)
    expect(page.locator("#chart-bounds svg")).not_to_have_attribute("viewBox", wide)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.screenshot(path=shots / "profile-phone.png", full_page=True)


@pytest.mark.browser
def test_the_plan_of_the_tab_is_compared(opened, profiled):
    page = opened(url=profiled.url)
    page.fill("#prompt", "a dark coat")
    page.click("#tab-profile")
    page.locator("#chart-rates path.hare.line").wait_for()
    page.locator("#rho").focus()
    page.keyboard.press("PageUp")
    rho, nfe = text(page, "#rho-value"), text(page, "#profile-nfe")
    page.click("#use-rho")
    expect(page.locator('input[name="kind"][value="profile"]')).to_be_checked()
    assert float(link(page)["rho"]) == float(rho)
    page.click("#generate")
    finish(page)
    assert text(page, "#nfe") == text(page, '#pane-thg [data-number="nfe"]')
    assert int(nfe) >= int(text(page, "#nfe"))
    choose(page, "kind", "default")
    choose(page, "kind", "profile")  # by the budget, from the form
    assert "error" in link(page)


@pytest.mark.browser
def test_without_a_profile_the_tab_says_how_to_make_one(opened):
    page = opened()
    page.click("#tab-profile")
    expect(page.locator("#no-profile")).to_contain_text("thg calibrate")
    page.click("#tab-compare")
    assert page.locator('input[name="kind"][value="profile"]').is_disabled()
