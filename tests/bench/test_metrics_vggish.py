"""FAD: VGGish's front end against closed forms and loops in numpy, its network against a second writing."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from thg.bench.metrics import Batch
from thg.bench.metrics.vggish import FAD, VGGish, load_vggish, log_mel_pictures, mel_weights
from thg.errors import MissingExtraError

SOUND = np.random.default_rng(0).normal(0, 0.2, 16_000 * 2 + 123)


def numpy_mel(hertz):
    return 1127 * math.log(1 + hertz / 700)


def numpy_log_mel(sound):
    """One frame at a time, one band at a time."""
    low, high = numpy_mel(125), numpy_mel(7500)
    corner = [low + (high - low) * k / 65 for k in range(66)]
    bands = np.zeros((257, 64))
    for bin_number in range(1, 257):
        place = numpy_mel(bin_number * 16_000 / 512)
        for band in range(64):
            rise = (place - corner[band]) / (corner[band + 1] - corner[band])
            fall = (corner[band + 2] - place) / (corner[band + 2] - corner[band + 1])
            bands[bin_number, band] = max(0, min(rise, fall))
    window = np.array([math.sin(math.pi * n / 400) ** 2 for n in range(400)])
    frames = [sound[start : start + 400] * window for start in range(0, len(sound) - 399, 160)]
    return np.log(np.abs(np.fft.rfft(frames, 512)) @ bands + 0.01)


def test_front_end_against_numpy():
    expected = numpy_log_mel(SOUND)
    found = log_mel_pictures(torch.from_numpy(SOUND))
    assert found.shape == (2, 1, 96, 64)
    np.testing.assert_allclose(found.reshape(192, 64).numpy(), expected[:192], atol=1e-5)


def test_silence_and_a_pure_tone_in_closed_form():
    silence = log_mel_pictures(torch.zeros(16_000))
    assert torch.allclose(silence, torch.full_like(silence, math.log(0.01)))
    # a tone on bin 32 (1 kHz, 25 periods a window): |FFT| there is half the sum of the Hann window, that is 100
    tone = torch.cos(2 * math.pi * 1000 * torch.arange(16_000, dtype=torch.float64) / 16_000)
    magnitude = torch.fft.rfft(tone[:400] * torch.hann_window(400, dtype=torch.float64), n=512).abs()
    assert float(magnitude[32]) == pytest.approx(100, rel=1e-6)
    loudest = log_mel_pictures(tone)[0, 0].mean(0).argmax()
    assert loudest == mel_weights()[32].argmax()


def test_sounds_that_fill_no_picture():
    assert len(log_mel_pictures(torch.zeros(100))) == 0
    assert len(log_mel_pictures(torch.zeros(400 + 94 * 160))) == 0
    assert len(log_mel_pictures(torch.zeros(400 + 95 * 160))) == 1


def second_writing(pictures, tensors):
    """VGGish by functional calls and the numbers of the weights file."""
    x = pictures
    for number, pool in ((0, True), (3, True), (6, False), (8, True), (11, False), (13, True)):
        x = F.relu(F.conv2d(x, tensors[f"features.{number}.weight"], tensors[f"features.{number}.bias"], padding=1))
        x = F.max_pool2d(x, 2) if pool else x
    x = torch.einsum("bchw->bhwc", x).reshape(len(x), -1)
    for number in (0, 2, 4):
        x = F.linear(x, tensors[f"embeddings.{number}.weight"], tensors[f"embeddings.{number}.bias"])
        x = F.relu(x) if number < 4 else x
    return x


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("vggish") / "vggish.safetensors"
    save_file(VGGish(hidden=16).state_dict(), path)
    return path


def test_network_and_loader(weights):
    from safetensors.torch import load_file

    embed = load_vggish(weights)
    sounds = torch.from_numpy(np.stack([SOUND, SOUND[::-1]])).float()
    with torch.no_grad():
        rows = embed(Batch(sounds, sample_rate=16_000))
        expected = second_writing(torch.cat([log_mel_pictures(sound) for sound in sounds]), load_file(weights))
    assert rows.shape == (4, 128)
    torch.testing.assert_close(rows, expected)


def test_fad_of_a_set_with_itself_is_zero_and_short_sounds_count_for_nothing(weights):
    metric = FAD(load_vggish(weights))
    batch = Batch(torch.from_numpy(SOUND).float()[None], sample_rate=16_000)
    metric.add_reference(batch)
    metric.update(batch)
    assert metric.compute() == pytest.approx(0, abs=1e-6)
    alone = metric.fresh()
    alone.update(Batch(torch.zeros(3, 1000), sample_rate=16_000))
    assert alone.compute() is None


def test_errors_say_what_is_missing(tmp_path):
    with pytest.raises(MissingExtraError, match=r"vggish.pth.*torchvggish"):
        load_vggish(tmp_path / "vggish.pth")
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(MissingExtraError, match="another network"):
        load_vggish(tmp_path / "other.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"\x08")
    with pytest.raises(MissingExtraError, match="not a readable weights file"):
        load_vggish(tmp_path / "torn.safetensors")
