"""Plans that the page asks for are the ones that thg's planners make."""

from __future__ import annotations

import pytest

import thg
from tests.studio.wishes import plan_wish
from thg.pipelines.describe import describe


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "DPMSolverMultistepScheduler", "HeunDiscreteScheduler"])
def test_default_plan_is_that_of_enable(studio, model, scheduler):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(scheduler=scheduler, plan={"kind": "default"})).json()
    own = model.pipe.scheduler
    model.pipe.scheduler = model.schedulers.make(scheduler)
    try:
        with thg.enabled(model.pipe):
            model.pipe("a coat", num_inference_steps=20, guidance_scale=5.0, output_type="latent")
            assert thg.Plan.from_dict(answer["plan"]) == thg.summary(model.pipe).plan
    finally:
        model.pipe.scheduler = own
    assert (answer["error"], answer["python"]) == (0.01, "thg.within(0.01)")


def test_closer_costs_more(studio):
    with studio.client() as client:
        specs = [{"kind": "default", "error": error} for error in (0.1, 0.01, 0.001)]
        costs = [client.post("/api/plan", json=plan_wish(plan=spec)).json()["nfe"] for spec in specs]
    assert costs == sorted(set(costs))


def test_a_budget_is_that_of_tapered(studio, model):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish()).json()
    scheduler = model.schedulers.make(None)
    scheduler.set_timesteps(20)
    expected = thg.tapered(0.65).plan(describe(scheduler, scheduler.timesteps))
    assert thg.Plan.from_dict(answer["plan"]) == expected
    assert (answer["nfe"], answer["cfg_nfe"], answer["calls"]) == (expected.nfe, 40, 20)
    assert answer["speedup"] == pytest.approx(expected.speedup, abs=1e-3)
    assert answer["evaluates"] == [expected.evaluates(i) for i in range(20)]
    assert answer["python"] == "thg.tapered(0.65)"
    assert answer["note"] == ""


def test_budget_moves_the_cost(studio):
    with studio.client() as client:
        costs = [
            client.post("/api/plan", json=plan_wish(plan={"kind": "default", "nfe": share})).json()["nfe"]
            for share in (0.51, 0.6, 0.8, 1.0)
        ]
    assert costs == [20, 24, 32, 40]


def test_held_hare_is_passed_on(studio):
    spec = {"kind": "default", "nfe": 0.7, "hare_order": 1, "corrector": 0}
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(plan=spec)).json()
    assert answer["plan"]["hare_order"] == 1
    assert answer["python"] == f"thg.{thg.Plan.from_dict(answer['plan'])!r}"


def test_paper_plan_is_the_preset(studio):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(steps=50, plan={"kind": "paper", "preset": "sd15"})).json()
    assert thg.Plan.from_dict(answer["plan"]) == thg.preset("sd15")
    assert (answer["nfe"], answer["cutoff"], answer["python"]) == (70, 38, "'sd15'")


def test_paper_plan_of_another_length_says_both_numbers(studio):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(steps=30, plan={"kind": "paper", "preset": "sd15"}))
    assert answer.status_code == 422
    assert "50" in answer.json()["message"]
    assert "30" in answer.json()["message"]


def test_custom_plan_is_taken_as_it_is(studio):
    spec = {"kind": "custom", "of": 20, "coarse": [0, 1, 5, 9], "cutoff": 12, "boost": 1.1, "hare_order": 1}
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(plan=spec)).json()
    assert thg.Plan.from_dict(answer["plan"]) == thg.Plan(20, (0, 1, 5, 9), 12, 1.1, 1)
    assert eval(answer["python"]) == thg.Plan(20, (0, 1, 5, 9), 12, 1.1, 1)


def test_custom_plan_is_stretched_to_a_run_of_another_length(studio):
    spec = {"kind": "custom", "of": 20, "coarse": [0, 1, 5, 10], "cutoff": 16}
    with studio.client() as client:
        longer = client.post("/api/plan", json=plan_wish(steps=40, plan=spec)).json()["plan"]
        shorter = client.post("/api/plan", json=plan_wish(steps=10, plan=spec)).json()["plan"]
    assert (longer["coarse"], longer["cutoff"]) == ([0, 2, 10, 20], 32)
    assert (shorter["coarse"], shorter["cutoff"]) == ([0, 2, 5], 8)


def test_calls_of_the_scheduler_count_not_its_steps(studio):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(scheduler="HeunDiscreteScheduler")).json()
    assert answer["calls"] == 39


def test_profile_plan_without_profile_says_what_to_do(studio):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(plan={"kind": "profile", "rho": 1.0}))
    assert answer.status_code == 422
    assert "--profile" in answer.json()["message"]


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 10_000}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"guidance_scale": 1.0}, "guidance_scale"),
        ({"guidance_scale": "much"}, "guidance_scale"),
        ({"scheduler": "../../etc/passwd"}, "scheduler"),
        ({"surprise": 1}, "surprise"),
        ({"plan": {"kind": "default", "nfe": 1.4}}, "nfe"),
        ({"plan": {"kind": "default", "nfe": 0.7, "hare_order": 3}}, "hare_order"),
        ({"plan": {"kind": "magic"}}, "plan"),
        ({"plan": {"kind": "paper", "preset": "nobody"}}, "nobody"),
        ({"plan": {"kind": "custom", "of": 20, "coarse": []}}, "coarse"),
        ({"plan": {"kind": "custom", "of": 20, "coarse": [1, 2]}}, "begin with 0"),
        ({"plan": {"kind": "custom", "of": 20, "coarse": [0, 25]}}, "25"),
        ({"plan": {"kind": "custom", "of": 20, "coarse": [0, 3, 3]}}, "increase"),
        ({"plan": {"kind": "custom", "of": 20, "coarse": [0], "boost": 0}}, "boost"),
        ({"plan": {"kind": "profile", "rho": 1.0, "nfe": 0.7}}, "one of error, nfe and rho"),
        ({"plan": {"kind": "default", "error": 0.01, "nfe": 0.7}}, "either error or nfe"),
        ({"plan": {"kind": "default", "error": 1.5}}, "error"),
    ],
)
def test_bad_wishes_are_named(studio, wish, named):
    with studio.client() as client:
        answer = client.post("/api/plan", json=plan_wish(**wish))
    assert answer.status_code == 422
    assert named in answer.json()["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"steps": NaN}', b"\xff\xfe", b"[" * 5000])
def test_bodies_that_are_no_wish(studio, body):
    with studio.client() as client:
        answer = client.post("/api/plan", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["message"]
