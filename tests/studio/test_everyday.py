"""The page in daily use: a long history at every width, numbers as people type them, a third column, notes of a run."""

from __future__ import annotations

import pytest

from tests.studio.browsing import DESKTOP, choose, expect, generate, link, number, set_up, text
from tests.studio.conftest import serve
from tests.studio.wishes import finished, plan_wish, run_wish
from thg.studio.engine import Engine
from thg.studio.model import Model
from thg.studio.specs import RunSettings

RUNS = 30

FILL_HISTORY = """async (count) => {
  const { all, keep } = await import("/static/js/store.js");
  const [run] = await all();
  for (let i = 1; i < count; i += 1) await keep({ ...run, when: run.when - i }, []);
}"""
"""Keeps the run of the page as often as `count` says."""


@pytest.fixture(scope="module")
def with_history(browser, studio):
    """A page whose browser has thirty runs."""
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(studio.url)
    page.wait_for_selector("body[data-ready]")
    set_up(page, seed=7)
    generate(page)
    expect(page.locator("#history button")).to_have_count(1)
    page.evaluate(FILL_HISTORY, RUNS)
    page.reload()
    expect(page.locator("#history button")).to_have_count(RUNS)
    yield page
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1366, 2560])
def test_thirty_runs_fit_every_window(with_history, width, shots):
    page = with_history
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for card in (".budget", "#stage", ".history"):
        box = page.locator(card).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    last = page.locator("#history button").nth(RUNS - 1)
    last.scroll_into_view_if_needed()
    assert last.bounding_box()["x"] < width
    page.screenshot(path=shots / f"history-{width}.png", full_page=True)


@pytest.mark.browser
def test_the_history_keeps_the_last_thirty(with_history):
    page = with_history
    page.set_viewport_size(DESKTOP)
    generate(page)
    expect(page.locator("#history button")).to_have_count(RUNS)
    page.reload()
    expect(page.locator("#history button")).to_have_count(RUNS)


@pytest.mark.browser
def test_a_custom_grid_survives_the_typing_of_a_number(opened):
    page = opened("/#steps=50&plan=custom&of=50&coarse=0.5.10.15.20.25.30.35.40.45")
    expect(page.locator('.mark[aria-pressed="true"]')).to_have_count(10)
    page.locator("#steps").select_text()
    for key, marks in (("2", 2), ("8", 28)):  # each key is a number of steps for a moment
        page.keyboard.press(key)
        expect(page.locator(".mark")).to_have_count(marks)
    expect(page.locator('.mark[aria-pressed="true"]')).to_have_count(10)
    expect(page.locator("#nfe")).to_have_text("38")
    page.reload()  # the link says the same
    expect(page.locator("#nfe")).to_have_text("38")


@pytest.mark.browser
def test_guidance_of_any_fraction(opened):
    page = opened()
    set_up(page, seed=7)
    page.fill("#guidance", "7.25")
    generate(page)
    assert link(page)["guidance_scale"] == "7.25"


@pytest.mark.browser
def test_a_third_column_on_request(opened, shots):
    page = opened()
    set_up(page, seed=7)
    page.check("#fewer")
    choose(page, "batch", "4")
    generate(page)
    assert [number(page, side, "nfe") for side in ("plain", "thg", "fewer")] == ["12", "8", "8"]
    assert number(page, "fewer", "psnr").split()[1] == "dB"
    assert page.locator("#pane-fewer .tile img").count() == 4
    page.set_viewport_size({"width": 1280, "height": 768})
    for side in ("thg", "fewer"):  # their numbers stay in their panes
        assert page.locator(f"#pane-{side} .numbers").evaluate("list => list.scrollWidth <= list.clientWidth")
    page.screenshot(path=shots / "three.png", full_page=True)
    page.uncheck("#fewer")
    generate(page)
    expect(page.locator("#pane-fewer")).to_be_hidden()
    page.locator("#history button").nth(1).click()
    expect(page.locator("#pane-fewer")).to_be_visible()
    assert page.is_checked("#fewer")


@pytest.mark.browser
def test_the_profile_tab_begins_at_a_useful_budget(opened, profiled_model):
    with serve(Engine(profiled_model)) as studio:
        page = opened(url=studio.url)
        page.click("#tab-profile")
        page.locator("#chart-rates path.hare.line").wait_for()
        assert 20 < int(text(page, "#profile-nfe")) <= 0.65 * 40
        page.close()


def test_the_shipped_profiles_have_a_ratio_for_the_budget():
    from tests.studio.conftest import command_model

    for name in ("eps", "flow"):
        engine = Engine(command_model("--model", name, "--device", "cpu"))
        profile = engine.model.profile
        about = engine.profile_for_page(profile)
        run = engine.model.run(RunSettings(steps=profile.steps, guidance_scale=profile.about.guidance_scale))
        share = profile.planner(rho=about["rho"]).plan(run).nfe / (2 * run.steps)
        assert 0.5 < share <= 0.65


def test_the_same_evaluations_are_those_of_fewer_steps(studio):
    with studio.client() as client:
        heard = finished(client, run_wish(steps=7, fewer_steps=True, plan={"kind": "default", "nfe": 0.75}))
    sides = {data["side"]: data for name, data in heard if name == "side"}
    assert (sides["plain"]["nfe"], sides["thg"]["nfe"], sides["fewer"]["nfe"]) == (14, 10, 10)
    last = heard[-1][1]
    assert 5 < last["psnr_fewer"][0] < last["psnr"][0]


def test_the_estimate_is_told_for_each_seed(studio):
    with studio.client() as client:
        heard = finished(client, run_wish(steps=20, batch=2, plan={"kind": "default", "error": 0.1}))
    estimates = heard[-1][1]["estimated_error"]
    assert len(estimates) == 2
    assert all(0 < error < 1 for error in estimates)


@pytest.mark.browser
def test_the_estimate_is_shown_and_stays_in_the_history(opened):
    page = opened("/#plan=default&error=0.1")
    set_up(page, seed=7, steps=20)
    generate(page)
    expect(page.locator("#remark")).to_contain_text("Estimated difference from plain CFG: ")
    expect(page.locator("#history small")).to_contain_text("· est. ")


@pytest.mark.browser
def test_little_time_saved_is_explained(opened):
    page = opened()
    remark = """async ([plain, thg]) => {
      const { remark } = await import("/static/js/stage.js");
      return remark({ sides: { plain: { nfe: 100, seconds: plain }, thg: { nfe: 60, seconds: thg } } });
    }"""
    assert page.evaluate(remark, [10, 6.5]) == ""
    for seconds in (9, 11):
        assert page.evaluate(remark, [10, seconds]).startswith("Less time was saved than evaluations: the network is")


def test_advice_for_the_page_is_for_people(studio):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(steps=30, plan={"kind": "paper", "preset": "sd15"}))
    message = answer.json()["message"]
    assert "set Steps to 50" in message
    assert "num_inference_steps" not in message
    assert "thg." not in message


def test_the_papers_plan_with_the_scheduler_of_stock_stable_diffusion(model):
    from diffusers import PNDMScheduler

    own = model.pipe.scheduler
    model.pipe.scheduler = PNDMScheduler.from_config(own.config, skip_prk_steps=True)
    try:
        with serve(Engine(Model(model.pipe, "stock", model.source))) as studio, studio.client() as client:
            wish = run_wish(steps=50, plan={"kind": "paper", "preset": "sd15"})
            sides = {data["side"]: data for name, data in finished(client, wish) if name == "side"}
    finally:
        model.pipe.scheduler = own
    assert sides["plain"]["nfe"] == 102  # PNDM calls the network once more than it has steps
    assert sides["thg"]["nfe"] < 75


def test_a_scheduler_that_adds_noise_is_named(model):
    """Before the run and after it."""
    from diffusers import EulerAncestralDiscreteScheduler

    own = model.pipe.scheduler
    model.pipe.scheduler = EulerAncestralDiscreteScheduler.from_config(own.config)
    try:
        with serve(Engine(Model(model.pipe, "noisy", model.source))) as studio, studio.client() as client:
            planned = client.post("/api/plan", json=plan_wish()).json()
            heard = finished(client, run_wish())
    finally:
        model.pipe.scheduler = own
    assert planned["nfe"] == planned["cfg_nfe"]
    for note in (planned["note"], heard[-1][1]["note"]):
        assert "verything" in note
        assert "adds noise" in note
