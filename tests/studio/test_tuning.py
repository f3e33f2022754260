"""`thg.tune` on the page: progress, what it reached, and the plan that follows from it."""

from __future__ import annotations

import pytest

import thg
from tests.studio.browsing import expect, generate, link, set_up
from tests.studio.conftest import until
from tests.studio.holding import held
from tests.studio.wishes import events, finished, plan_wish, run_wish, stream
from thg.plans.tolerance import Tuned
from thg.studio.app import WAITING

PROMPTS = ["a dark coat", "a light bag", "a dress", "a shirt"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THG_CACHE", str(tmp_path))
    monkeypatch.delenv("THG_TUNED", raising=False)
    return tmp_path


def tune_wish(**changes):
    return {"steps": 12, "guidance_scale": 5.0, "error": 0.1, "prompts": PROMPTS, **changes}


def test_it_says_how_far_it_is_and_what_it_reached(studio, model, cache):
    with studio.client() as client:
        refused = client.post("/api/plan", json=plan_wish(steps=12, plan={"kind": "tuned"}))
        assert refused.status_code == 422
        assert "has not been tuned with this scheduler" in refused.json()["message"]
        heard = stream(client, "/api/tune", tune_wish())
        planned = client.post("/api/plan", json=plan_wish(steps=12, plan={"kind": "tuned"})).json()
        other = client.post(
            "/api/plan", json=plan_wish(steps=12, scheduler="DEISMultistepScheduler", plan={"kind": "tuned"})
        )
        run = finished(client, run_wish(steps=12, plan={"kind": "tuned"}))
    steps = [data for name, data in heard if name == "tuning"]
    assert [data["done"] for data in steps] == list(range(1, len(steps) + 1))
    assert {data["of"] for data in steps} == {6}  # one batch, plain and five times accelerated at most
    (file,) = cache.rglob("*.json")
    tuned = Tuned.load(file)
    assert (tuned.samples, tuned.error, tuned.steps) == (4, 0.1, 12)
    assert heard[-1] == ("done", {"sentence": f"{tuned}.".capitalize(), "kept": tuned.kept})
    assert planned["note"].startswith("Tuned on 4 samples: 95 % within ")
    assert planned["nfe"] == tuned.nfe
    assert other.status_code == 422
    side = next(data for name, data in run if name == "side" and data["side"] == "thg")
    assert side["nfe"] == tuned.nfe
    with thg.enabled(model.pipe):  # finds the same
        model.pipe("a dark coat", num_inference_steps=12, guidance_scale=5.0, output_type="latent")
        assert thg.summary(model.pipe).plan == thg.Plan.from_dict(planned["plan"])


@pytest.mark.parametrize(
    ("changes", "says"), [({"prompts": []}, "prompts"), ({"prompts": ["a"] * 65}, "prompts"), ({"error": 2}, "error")]
)
def test_limits(studio, changes, says):
    with studio.client() as client:
        answer = client.post("/api/tune", json=tune_wish(**changes))
    assert answer.status_code == 422
    assert answer.json()["message"].startswith(says)


def test_it_ends_when_nobody_waits_for_it(studio, cache, model):
    before = model.pipe.scheduler
    with studio.client() as client:
        with held(studio.engine), client.stream("POST", "/api/tune", json=tune_wish(steps=50)) as running:
            assert next(events(running))[0] == "queued"
        until(lambda: client.get("/api/queue").json() == {"running": False, "waiting": 0, "limit": WAITING})
        assert not list(cache.rglob("*.json"))
        assert model.pipe.scheduler is before
        assert not thg.is_enabled(model.pipe)
        assert finished(client, run_wish(seed=41))[-1][0] == "done"


@pytest.mark.browser
def test_the_page_tunes_and_follows_the_result(opened, cache, shots):
    page = opened("/#plan=default&error=0.1")
    set_up(page, seed=3, steps=12)
    page.click("#tuning summary")
    page.click("#tune")
    expect(page.locator("#tuned.bad")).to_contain_text("Write prompts, one per line")
    page.fill("#tune-prompts", "\n".join(PROMPTS))
    page.click("#tune")
    expect(page.locator("#tuned")).to_contain_text("Tuned on 4 samples: 95 % within")
    expect(page.locator("#plan-error")).to_contain_text("Tuned on 4 samples")
    page.screenshot(path=shots / "tuned.png", full_page=True)
    generate(page)
    assert link(page)["plan"] == "tuned"
    page.reload()
    expect(page.locator('input[name="kind"][value="tuned"]')).to_be_checked()
    expect(page.locator("#plan-error")).to_contain_text("Tuned on 4 samples")
