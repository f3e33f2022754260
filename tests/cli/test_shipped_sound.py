"""`thg generate` and `thg compare` with the shipped sound model."""

import wave

import numpy as np
import pytest
from PIL import Image

from thg.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")


def test_generate_writes_a_sound(tmp_path, capsys):
    out = tmp_path / "x.wav"
    assert main(["generate", "--model", "audio", "a loud low trumpet note", "--steps", "4", "-o", str(out)]) == 0
    with wave.open(str(out)) as sound:
        assert (sound.getframerate(), sound.getnframes(), sound.getnchannels()) == (16_000, 20_480, 1)
        samples = np.frombuffer(sound.readframes(20_480), "<i2")
    assert np.abs(samples).max() > 30
    assert "AudioLDM2Pipeline" in capsys.readouterr().out


def test_compare_writes_spectrograms_and_the_files(tmp_path, capsys):
    out = tmp_path / "c.png"
    command = ["compare", "--model", "audio", "a fast loud hi-hat pattern", "--steps", "12", "-o", str(out)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "plain CFG" in shown
    assert "dB" in shown
    assert Image.open(out).text["thg"].startswith("{")
    names = {path.name for path in tmp_path.glob("*.wav")}
    assert {"c-plain-cfg-0.wav", "c-thg-0.wav"} <= names
    out.unlink()
    assert main(command) == 2  # the sounds of the first comparison are in the way
    assert "exists already" in capsys.readouterr().err
