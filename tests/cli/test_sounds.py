"""`thg compare` with a sound model, and its spectrograms."""

import math
import wave

import numpy as np
import pytest
from PIL import Image

from tests.tiny_hub import save_audioldm2
from thg.cli import main
from thg.plots.pictures import CELL as SIDE
from thg.plots.pictures import LOWEST, spectrogram

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")


def test_compare_writes_spectrograms_and_the_files(tmp_path, capsys):
    model, out = save_audioldm2(tmp_path / "model"), tmp_path / "c.png"
    command = ["compare", "--model", str(model), "a fast loud hi-hat pattern", "--steps", "12", "-o", str(out)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "plain CFG" in shown
    assert "c-*.wav" in shown
    assert Image.open(out).text["thg"].startswith("{")
    assert {"c-plain-cfg-0.wav", "c-thg-0.wav"} <= {path.name for path in tmp_path.glob("*.wav")}
    with wave.open(str(tmp_path / "c-thg-0.wav")) as sound:
        assert sound.getframerate() == 16_000
        assert sound.getnframes() > 1000
    out.unlink()
    assert main(command) == 2  # the sounds of the first comparison are in the way
    assert "exists already" in capsys.readouterr().err


def test_a_spectrogram_shows_a_tone_at_its_pitch():
    rate, pitch = 16_000, 1000.0
    tone = 0.5 * np.sin(2 * math.pi * pitch * np.arange(rate) / rate)
    picture = np.asarray(spectrogram(tone, rate)).astype(int).sum(2)
    row = SIDE - 1 - round((SIDE - 1) * math.log(pitch / LOWEST) / math.log(rate / 2 / LOWEST))
    assert abs(int(picture[:, SIDE // 2].argmax()) - row) <= 2
    assert picture.shape == (SIDE, SIDE)
