"""The shipped models in the studio: by name, and folders of their kind."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

import thg
from tests.studio.conftest import command_model, serve
from tests.studio.wishes import finished, plan_wish, run_wish
from thg.models import SHIPPED, shipped_path
from thg.models.scheduler_choice import offered
from thg.ode.schedulers import OFFERED
from thg.studio.engine import Engine


def deterministic(flow: bool) -> list[str]:
    return [name for name in offered(flow) if not OFFERED[name].adds_noise]


@pytest.fixture(scope="module")
def flow():
    with serve(Engine(command_model("--model", "flow", "--device", "cpu"))) as running:
        yield running


def picture(item: dict) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(item["files"][0]))))


def thg_side(heard: list) -> dict:
    return next(data for name, data in heard if name == "side" and data["side"] == "thg")


def test_the_page_knows_the_model(flow):
    with flow.client() as client:
        known = client.get("/api/model").json()
    assert (known["steps"], known["guidance_scale"]) == (28, 4.0)
    names = [scheduler["name"] for scheduler in known["schedulers"]]
    assert names[0] == "FlowMatchEulerDiscreteScheduler"
    assert set(names) == set(offered(flow=True))
    assert known["examples"]


def test_it_is_called_as_it_is_meant_to_be(flow):
    with flow.client() as client:
        heard = finished(client, run_wish(guidance_scale=4.0))
    pipe = flow.engine.model.pipe
    call = {"num_inference_steps": 6, "guidance_scale": 4.0, "output_type": "np", **SHIPPED["flow"].call}
    with thg.enabled(pipe, thg.tapered(0.65)):
        made = pipe("a dark coat", generator=torch.Generator().manual_seed(3), **call).images[0]
    expected = (made * 255).round().astype(np.uint8)
    np.testing.assert_array_equal(picture(thg_side(heard)["items"][0]), expected.squeeze())


def test_without_options_it_is_the_emoji_model_with_suggestions():
    model = command_model("--device", "cpu")
    assert model.source == ("pipe = thg.shipped_pipeline('emoji')",)
    assert "panda" in model.describe()["examples"]
    with serve(Engine(model)) as studio, studio.client() as client:
        known, unknown = (
            finished(client, run_wish(prompt=prompt, steps=2, plan={"kind": "default", "nfe": 1.0}))
            for prompt in ("a panda", "a bicycle")
        )
    assert picture(thg_side(known)["items"][0]).shape == (64, 64, 3)
    assert "knows" not in known[-1][1]["note"]
    assert unknown[-1][1]["note"].startswith("'a bicycle' has no word that this model knows; it draws emoji")


def test_the_sound_model_has_its_spectrogram():
    with serve(Engine(command_model("--model", "audio", "--device", "cpu"))) as studio, studio.client() as client:
        heard = finished(client, run_wish(prompt="a loud low trumpet note", steps=3))
    item = thg_side(heard)["items"][0]
    assert item["kind"] == "audio"
    assert picture({"files": [item["spectrogram"]]}).std() > 5


@pytest.fixture(scope="module")
def fine(flow) -> np.ndarray:
    """The picture that all schedulers come close to: many steps of the model's own."""
    pipe = flow.engine.model.pipe
    call = {"num_inference_steps": 40, "guidance_scale": 4.0, **SHIPPED["flow"].call}
    made = pipe("a dark coat", generator=torch.Generator().manual_seed(3), **call).images[0]
    return np.asarray(made.convert("L"), dtype=float)


@pytest.mark.parametrize("name", deterministic(flow=True))
def test_every_scheduler_of_the_flow_model_works(flow, name, fine):
    budget = {"kind": "default", "nfe": 0.8}
    with flow.client() as client:
        heard = finished(client, run_wish(scheduler=name, steps=12, guidance_scale=4.0, plan=budget))
        calls = client.post("/api/plan", json=plan_wish(scheduler=name, steps=12)).json()["calls"]
    assert thg_side(heard)["nfe"] < 2 * calls
    assert np.mean((picture(thg_side(heard)["items"][0]) - fine) ** 2) < 0.02 * 255**2


def test_lines_of_python_with_another_scheduler_of_the_flow_model(flow, tmp_path, monkeypatch):
    with flow.client() as client:
        heard = finished(client, run_wish(scheduler="UniPCMultistepScheduler", guidance_scale=4.0))
    monkeypatch.chdir(tmp_path)
    exec(heard[-1][1]["script"], {})
    saved = np.asarray(Image.open(tmp_path / "thg-3.png").convert("L"))
    np.testing.assert_array_equal(saved, picture(thg_side(heard)["items"][0]))


def test_schedulers_of_the_other_kind_are_refused_by_name(flow, studio):
    for running, wrong in ((flow, "DDIMScheduler"), (studio, "FlowMatchEulerDiscreteScheduler")):
        with running.client() as client:
            answer = client.post("/api/plan", json=plan_wish(scheduler=wrong))
        assert answer.status_code == 422
        assert wrong in answer.json()["message"]


@pytest.mark.parametrize("name", deterministic(flow=False))
def test_every_scheduler_of_an_eps_model_works(studio, name):
    with studio.client() as client:
        heard = finished(client, run_wish(scheduler=name, seed=80))
    assert heard[-1][0] == "done"
    assert heard[-1][1]["psnr"][0] > 20


@pytest.mark.parametrize("name", ["eps", "flow"])
def test_a_folder_of_the_same_kind(name, tmp_path, monkeypatch):
    model = command_model("--model", str(shipped_path(name)), "--device", "cpu")
    assert model.name == name
    with serve(Engine(model)) as studio, studio.client() as client:
        heard = finished(client, run_wish(steps=3))
    monkeypatch.chdir(tmp_path)
    exec(heard[-1][1]["script"], {})
    saved = np.asarray(Image.open(tmp_path / "thg-3.png").convert("L"))
    np.testing.assert_array_equal(saved, picture(thg_side(heard)["items"][0]))
