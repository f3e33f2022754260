"""Pictures, sound and frames on their way to the page, and how far apart two of them are."""

from __future__ import annotations

import base64
import io
import threading
import wave

import numpy as np
import pytest
from PIL import Image

from tests.studio.tiny import tiny_animation, tiny_sound
from tests.studio.wishes import run_wish
from thg.errors import THGError
from thg.media import Output
from thg.studio.engine import Engine
from thg.studio.model import Model
from thg.studio.results import decibels, png, wav
from thg.studio.specs import RunRequest


def read_png(text: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3)])
def test_png_holds_the_pixels(shape):
    pixels = np.random.default_rng(0).random(shape)
    expected = (pixels * 255).round().astype(np.uint8).reshape(shape if shape[-1] != 1 else shape[:2])
    np.testing.assert_array_equal(read_png(png(pixels)), expected)


def test_png_clips_and_refuses_what_is_no_number():
    assert read_png(png(np.array([[-1.0, 2.0]]))).tolist() == [[0, 255]]
    with pytest.raises(THGError, match="NaN"):
        png(np.array([[np.nan]]))


@pytest.mark.parametrize("channels", [1, 2])
def test_wav_holds_the_samples(channels):
    samples = np.linspace(-1, 1, 100 * channels).reshape(channels, 100)
    with wave.open(io.BytesIO(base64.b64decode(wav(samples, 16000)))) as sound:
        assert (sound.getnchannels(), sound.getframerate(), sound.getnframes()) == (channels, 16000, 100)
        heard = np.frombuffer(sound.readframes(100), "<i2").reshape(100, channels).T / 32767
    np.testing.assert_allclose(heard, samples, atol=1e-4)


def test_psnr_of_known_errors():
    reference = Output("image", (np.zeros((4, 4, 3)), np.ones((4, 4, 3))))
    other = Output("image", (np.full((4, 4, 3), 0.1), np.ones((4, 4, 3))))
    first, second = decibels(other, reference)
    assert first == pytest.approx(20)
    assert second is None


def test_psnr_of_sound_counts_from_its_own_peak():
    reference = Output("audio", (np.array([0.5, -0.5]),), 16000)
    other = Output("audio", (np.array([0.45, -0.45]),), 16000)
    assert decibels(other, reference)[0] == pytest.approx(20)


def test_unknown_outputs_are_named():
    with pytest.raises(THGError, match="neither pictures nor sound nor frames"):
        Output.of(object(), object())


def comparison(pipe, **wish) -> list[tuple[str, dict]]:
    heard: list[tuple[str, dict]] = []
    engine = Engine(Model(pipe, "tiny", ("pipe = None",)))
    request = RunRequest.model_validate(run_wish(steps=3, **wish))
    plan, _ = engine.plan(request)
    engine.compare(request, plan, lambda name, data: heard.append((name, data)), threading.Event())
    return heard


def test_sound_model():
    heard = comparison(tiny_sound())
    item = next(data for name, data in heard if name == "side")["items"][0]
    assert item["kind"] == "audio"
    with wave.open(io.BytesIO(base64.b64decode(item["files"][0]))) as sound:
        assert sound.getframerate() == 16000
        assert sound.getnframes() > 100
    assert len(np.unique(read_png(item["spectrogram"]).reshape(-1, 3), axis=0)) > 20
    assert "made.audios" in heard[-1][1]["script"]


def test_video_model():
    heard = comparison(tiny_animation(), width=32, height=32)
    item = next(data for name, data in heard if name == "side")["items"][0]
    assert item["kind"] == "video"
    assert len(item["files"]) == 16
    assert read_png(item["files"][0]).shape == (32, 32, 3)
    assert "made.frames" in heard[-1][1]["script"]
