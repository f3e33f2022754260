"""Runs over a real socket: what comes, in which order, and that it is what thg makes without the studio."""

from __future__ import annotations

import base64
import io
import json
import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import thg
from tests.studio.conftest import serve, until
from tests.studio.holding import held
from tests.studio.wishes import events, finished, run_wish
from thg.studio.engine import Engine
from thg.studio.jobs import Cancelled
from thg.studio.model import Model
from thg.studio.specs import RunRequest

DEFAULT_PLANNER = thg.tapered(0.65)


def picture(item: dict) -> np.ndarray:
    assert item["kind"] == "image"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(item["files"][0]))))


def about(item: dict) -> dict:
    with Image.open(io.BytesIO(base64.b64decode(item["files"][0]))) as made:
        return json.loads(made.text["thg"])


def pixels(pipe, plan=None, seed=3, steps=6) -> np.ndarray:
    """The same picture without the studio."""

    def call() -> np.ndarray:
        generator = torch.Generator().manual_seed(seed)
        made = pipe("a dark coat", num_inference_steps=steps, guidance_scale=5.0, generator=generator, output_type="np")
        return (made.images[0] * 255).round().astype(np.uint8)

    if plan is None:
        return call()
    with thg.enabled(pipe, plan):
        return call()


def test_both_sides_are_what_the_pipeline_makes(studio, model):
    with studio.client() as client:
        heard = finished(client, run_wish())
    names = [name for name, _ in heard]
    assert names[0] == "queued"
    assert names[1] == "started"
    assert names[-1] == "done"
    sides = {data["side"]: data for name, data in heard if name == "side"}
    np.testing.assert_array_equal(picture(sides["plain"]["items"][0]), pixels(model.pipe))
    np.testing.assert_array_equal(picture(sides["thg"]["items"][0]), pixels(model.pipe, DEFAULT_PLANNER))
    assert (sides["plain"]["nfe"], sides["thg"]["nfe"]) == (12, 8)
    (decibels,) = heard[-1][1]["psnr"]
    assert 20 < decibels < 100


def test_a_picture_records_its_settings_and_what_it_has_cost(studio):
    with studio.client() as client:
        heard = finished(client, run_wish(width=32, height=16, batch=2))
    sides = {data["side"]: data for name, data in heard if name == "side"}
    for number, seed in enumerate((3, 4)):
        plain, ours = (about(sides[side]["items"][number]) for side in ("plain", "thg"))
        assert {**plain, **ours} == ours | {"seed": seed, "width": 32, "height": 16, "steps": 6, "cfg_nfe": 12}
        assert (plain["nfe"], plain["plan"], plain["estimated_error"]) == (12, None, None)
        assert thg.Plan.from_dict(ours["plan"]).nfe == ours["nfe"] == 8
        assert ours["estimated_error"] == heard[-1][1]["estimated_error"][number]


def test_the_first_run_is_warmed_up(model):
    calls = []
    handle = model.pipe.unet.register_forward_pre_hook(lambda network, arguments: calls.append(1))
    try:
        with serve(Engine(model)) as studio, studio.client() as client:
            first = [name for name, _ in finished(client, run_wish())]
            counts = [len(calls)]
            second = [name for name, _ in finished(client, run_wish(seed=4))]
            counts.append(len(calls))
    finally:
        handle.remove()
    assert first[:3] == ["queued", "warming", "started"]
    assert "warming" not in second
    assert counts[0] == 2 + (counts[1] - counts[0])


def test_cancel_reaches_a_pipeline_that_does_not_tell_its_steps(model):
    """Some pipelines take no callback."""
    silent = Model(model.pipe, "silent", model.source)
    silent.takes = silent.takes - {"callback_on_step_end", "callback"}
    engine, cancelled, calls = Engine(silent), threading.Event(), []

    def count(network: Any, arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            cancelled.set()

    handle = model.pipe.unet.register_forward_pre_hook(count)
    request = RunRequest.model_validate(run_wish(steps=50))
    try:
        with pytest.raises(Cancelled):
            engine.compare(request, engine.plan(request)[0], lambda name, data: None, cancelled)
    finally:
        handle.remove()
    assert len(calls) == 4
    assert model.pipe.scheduler is silent.schedulers.original


def test_each_step_is_told_and_previewed(studio):
    with studio.client() as client:
        heard = finished(client, run_wish(seed=4))
    for side in ("plain", "thg"):
        steps = [data for name, data in heard if name == "step" and data["side"] == side]
        assert [data["step"] for data in steps] == [1, 2, 3, 4, 5, 6]
        assert all(data["of"] == 6 for data in steps)
        assert any(data["previews"] for data in steps)


def test_full_plan_is_identical_to_plain(studio):
    with studio.client() as client:
        heard = finished(client, run_wish(plan={"kind": "default", "nfe": 1.0}))
    assert heard[-1][1]["psnr"] == [None]


def test_plain_side_is_reused_when_only_the_plan_changes(studio):
    with studio.client() as client:
        first = finished(client, run_wish(seed=11))
        second = finished(client, run_wish(seed=11, plan={"kind": "default", "nfe": 0.8}))
    plain = [next(d for n, d in heard if n == "side" and d["side"] == "plain") for heard in (first, second)]
    assert [side["remembered"] for side in plain] == [False, True]
    assert plain[0]["items"] == plain[1]["items"]
    assert not [d for n, d in second if n == "step" and d["side"] == "plain"]


def test_batch_of_four_seeds(studio, model):
    with studio.client() as client:
        heard = finished(client, run_wish(batch=4))
    sides = {data["side"]: data for name, data in heard if name == "side"}
    assert len(sides["plain"]["items"]) == len(sides["thg"]["items"]) == len(heard[-1][1]["psnr"]) == 4
    alone = pixels(model.pipe, seed=5)
    assert np.abs(picture(sides["plain"]["items"][2]).astype(int) - alone).max() <= 1


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"batch": 2, "negative_prompt": "fog", "width": 40, "height": 32},
        {
            "scheduler": "EulerDiscreteScheduler",
            "plan": {"kind": "custom", "of": 6, "coarse": [0, 1, 4], "hare_order": 1},
        },
    ],
)
def test_script_reproduces_the_picture(studio, wish, tmp_path, monkeypatch):
    with studio.client() as client:
        heard = finished(client, run_wish(**wish))
    monkeypatch.chdir(tmp_path)
    exec(heard[-1][1]["script"], {})
    side = next(data for name, data in heard if name == "side" and data["side"] == "thg")
    for seed, item in enumerate(side["items"], 3):
        saved = np.asarray(Image.open(tmp_path / f"thg-{seed}.png"))
        np.testing.assert_array_equal(saved, picture(item))


def test_the_scheduler_of_a_run_does_not_stay(studio, model):
    before = model.pipe.scheduler
    with studio.client() as client:
        finished(client, run_wish(scheduler="DPMSolverMultistepScheduler"))
    assert model.pipe.scheduler is before


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 1001}, "prompt"),
        ({"negative_prompt": "x" * 1001}, "negative_prompt"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"batch": 10}, "batch"),
        ({"width": 4096}, "width"),
        ({"height": 33}, "height"),
        ({"steps": 151}, "steps"),
    ],
)
def test_limits(studio, wish, named):
    with studio.client() as client:
        answer = client.post("/api/runs", json=run_wish(**wish))
    assert answer.status_code == 422
    assert answer.json()["message"].startswith(named)


def test_a_run_that_fails_is_told_and_the_server_goes_on(model):
    with serve(Engine(model)) as studio, studio.client() as client:
        unet, model.pipe.unet = model.pipe.unet, None
        try:
            heard = finished(client, run_wish())
        finally:
            model.pipe.register_modules(unet=unet)  # a plain assignment leaves it out of what save_pretrained writes
        assert heard[-1][0] == "failed"
        assert "has no denoiser" in heard[-1][1]["message"]
        assert finished(client, run_wish())[-1][0] == "done"


def test_closing_the_connection_in_the_middle_of_a_run_frees_the_worker(studio):
    with held(studio.engine) as network, studio.client() as client:
        with client.stream("POST", "/api/runs", json=run_wish(steps=150, seed=21)) as response:
            assert any(name == "step" and data["step"] == 3 for name, data in events(response))
        until(lambda: client.get("/api/queue").json()["running"] is False)
        assert network.calls <= network.after + 1
    with studio.client() as client:
        assert finished(client, run_wish(seed=22))[-1][0] == "done"


def test_a_job_that_leaves_the_queue_never_runs(studio):
    with held(studio.engine) as network, studio.client() as client, studio.client() as other:
        with client.stream("POST", "/api/runs", json=run_wish(steps=150, seed=31)) as running:
            until(lambda: network.calls == network.after + 1)
            with other.stream("POST", "/api/runs", json=run_wish(seed=32)) as waiting:
                queued = events(waiting)  # kept: the end of the generator is the end of the connection
                name, data = next(queued)
                assert (name, data["ahead"]) == ("queued", 1)
                assert client_load(studio) == (True, 1)
            until(lambda: client_load(studio) == (True, 0))
            assert next(events(running))[0] == "queued"  # it still goes on
        until(lambda: client_load(studio) == (False, 0))
        assert network.calls == network.after + 1


def client_load(studio) -> tuple[bool, int]:
    with studio.client() as client:
        load = client.get("/api/queue").json()
    return load["running"], load["waiting"]
