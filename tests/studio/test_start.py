"""Runs that start from a picture: the plan of the last steps, both sides, the script, and the page."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import thg
from tests.studio.browsing import downloaded, expect, generate, set_up, text
from tests.studio.conftest import serve
from tests.studio.tiny import tiny_sound
from tests.studio.wishes import finished, plan_wish, run_wish
from thg.studio.engine import Engine
from thg.studio.model import Model


def photo(size=(32, 16), form="PNG") -> bytes:
    """A picture with an edge."""
    pixels = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    pixels[:, size[0] // 2 :] = (200, 80, 20)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def wish(**changes):
    image = base64.b64encode(photo()).decode()
    return run_wish(**{"steps": 20, "image": image, "image_name": "start.png", "strength": 0.5, **changes})


def picture(item: dict) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(item["files"][0]))))


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "DPMSolverMultistepScheduler"])
def test_the_plan_has_the_steps_that_are_left(studio, model, scheduler):
    """As many as the pipeline runs, and those that `thg.enable` would choose."""
    spec = {"kind": "default", "error": 0.1}
    with studio.client() as client:
        asked = plan_wish(steps=40, strength=0.5, scheduler=scheduler, plan=spec)
        answer = client.post("/api/plan", json=asked).json()
    pipe = model.from_picture
    own, pipe.scheduler = pipe.scheduler, model.schedulers.make(scheduler)
    start = Image.open(io.BytesIO(photo()))
    try:
        with thg.enabled(pipe, thg.within(0.1)):
            pipe("a coat", image=start, strength=0.5, num_inference_steps=40, guidance_scale=5.0)
            followed = thg.summary(pipe).plan
    finally:
        pipe.scheduler = own
    assert answer["calls"] == followed.steps
    assert thg.Plan.from_dict(answer["plan"]) == followed


def test_both_sides_start_from_the_picture(studio, model):
    with studio.client() as client:
        heard = finished(client, wish())
        remembered = finished(client, wish(plan={"kind": "default", "nfe": 0.8}))
        other = finished(client, wish(image=base64.b64encode(photo((32, 32))).decode()))
    sides = {data["side"]: data for name, data in heard if name == "side"}
    assert (sides["plain"]["nfe"], sides["thg"]["nfe"]) == (20, 12)
    call = {"num_inference_steps": 20, "guidance_scale": 5.0, "generator": torch.Generator().manual_seed(3)}
    start = Image.open(io.BytesIO(photo()))
    expected = model.from_picture("a dark coat", image=start, strength=0.5, output_type="np", **call).images[0]
    np.testing.assert_array_equal(picture(sides["plain"]["items"][0]), (expected * 255).round().astype(np.uint8))
    steps = [data for name, data in heard if name == "step" and data["side"] == "thg"]
    assert [data["step"] for data in steps] == list(range(1, 11))
    about = json.loads(Image.open(io.BytesIO(base64.b64decode(sides["thg"]["items"][0]["files"][0]))).text["thg"])
    assert (about["image"], about["strength"]) == ("start.png", 0.5)
    again = [next(d for n, d in run if n == "side" and d["side"] == "plain") for run in (remembered, other)]
    assert [side["remembered"] for side in again] == [True, False]
    assert picture(again[1]["items"][0]).shape == (32, 32, 3)


def test_the_first_run_is_warmed_up_with_any_strength(model):
    with serve(Engine(model)) as studio, studio.client() as client:
        heard = finished(client, wish(strength=0.2))
    assert [name for name, _ in heard][:3] == ["queued", "warming", "started"]
    assert heard[-1][0] == "done"


def test_a_large_picture_is_reduced_to_the_size_of_the_model(studio, model):
    own = model.pipe.unet.config.sample_size * model.pipe.vae_scale_factor
    with studio.client() as client:
        large = base64.b64encode(photo((40 * own, 20 * own), "JPEG")).decode()
        heard = finished(client, wish(image=large, steps=4, strength=1.0))
    side = next(data for name, data in heard if name == "side")
    assert picture(side["items"][0]).shape == (max(16, own // 2), own, 3)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_script_makes_the_same_picture(studio, batch, tmp_path, monkeypatch):
    with studio.client() as client:
        heard = finished(client, wish(batch=batch))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start.png").write_bytes(photo())
    exec(heard[-1][1]["script"], {})
    side = next(data for name, data in heard if name == "side" and data["side"] == "thg")
    for seed, item in enumerate(side["items"], 3):
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / f"thg-{seed}.png")), picture(item))


def test_what_cannot_be_a_start_is_refused(studio):
    with studio.client() as client:
        assert "both image and strength" in client.post("/api/runs", json=wish(strength=None)).json()["message"]
        assert client.post("/api/runs", json=wish(strength=1.5)).status_code == 422
        none_left = client.post("/api/plan", json=plan_wish(steps=20, strength=0.01)).json()["message"]
        assert none_left == "A strength of 0.01 leaves none of 20 steps: take more of either."
        for content in (b"no picture", b"GIF89a", photo()[:60]):
            name, data = finished(client, wish(image=base64.b64encode(content).decode()))[-1]
            assert (name, data["message"]) == ("failed", "this file is not a picture: drop a PNG, JPEG or WebP")
        large = base64.b64encode(photo((8000, 7000))).decode()
        assert "million pixels" in finished(client, wish(image=large))[-1][1]["message"]


def test_a_model_without_a_variant_for_pictures():
    with serve(Engine(Model(tiny_sound(), "sound", ("pipe = None",)))) as studio, studio.client() as client:
        assert client.get("/api/model").json()["from_picture"] is False
        answer = client.post("/api/plan", json=plan_wish(strength=0.5))
    assert "AudioLDMPipeline cannot start from a picture" in answer.json()["message"]


DROP = """([text, name, type, place]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, { type }));
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector(place).dispatchEvent(event);
}"""


def drop(page, content: bytes, place="#stage", name="photo.png", kind="image/png") -> None:
    page.evaluate(DROP, [base64.b64encode(content).decode(), name, kind, place])


@pytest.mark.browser
def test_a_dropped_photo_is_where_the_runs_start(opened, shots):
    page = opened()
    set_up(page, seed=7, steps=20)
    generate(page)
    plain = page.locator("#pane-plain img").first.evaluate("image => image.naturalHeight")
    drop(page, photo())
    expect(page.locator("#toast")).to_contain_text("Runs start from this picture")
    expect(page.locator(".mark")).to_have_count(12)  # 0.6 of the steps
    assert text(page, "#start-name") == "photo.png"
    page.fill("#strength", "0.5")
    page.locator("#strength").blur()  # Enter would start a run
    expect(page.locator(".mark")).to_have_count(10)
    generate(page)
    page.screenshot(path=shots / "start.png")
    assert page.locator("#pane-plain img").first.evaluate("image => image.naturalHeight") == 16 != plain
    _, made = downloaded(page, "picture")
    page.locator("#history button").nth(1).click()  # the run without it
    expect(page.locator("#start-chosen")).to_be_hidden()
    page.locator("#history button").nth(0).click()
    assert text(page, "#start-name") == "photo.png"
    expect(page.locator(".mark")).to_have_count(10)
    page.click("#start-remove")
    expect(page.locator(".mark")).to_have_count(20)
    drop(page, made.read_bytes())
    expect(page.locator("#toast")).to_contain_text("It was made from photo.png: drop that, too.")
    expect(page.locator("#start-chosen")).to_be_hidden()
    drop(page, made.read_bytes(), place="#start", name="made.png")  # on its place a picture is always a start
    expect(page.locator("#start-name")).to_have_text("made.png")


@pytest.mark.browser
def test_a_photo_from_the_dialog_and_files_that_are_none(opened, tmp_path):
    page = opened()
    (tmp_path / "photo.jpg").write_bytes(photo(form="JPEG"))
    page.set_input_files("#start-file", tmp_path / "photo.jpg")
    expect(page.locator("#start-name")).to_have_text("photo.jpg")
    page.click("#start-remove")
    drop(page, b"words", name="words.txt", kind="text/plain")
    expect(page.locator("#toast")).to_contain_text("Drop a picture (PNG, JPEG or WebP)")
    expect(page.locator("#start-chosen")).to_be_hidden()
