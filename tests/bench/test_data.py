"""Reference folders and statistics files: what people really have, and what goes wrong."""

import wave

import numpy as np
import pytest
import torch
from PIL import Image

from thg.bench.data import read_references, read_statistics, write_statistics
from thg.bench.data.references import files_below, read_sound
from thg.bench.metrics.inception import FID, KID
from thg.prompts import DataError


def save_pictures(folder, sizes):
    folder.mkdir(exist_ok=True)
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (number, 0, 255)).save(folder / f"{number:03}.png")
    return folder


def test_pictures_of_all_sizes_come_in_one_batch_and_broken_ones_are_left_out(tmp_path):
    folder = save_pictures(tmp_path / "pictures", [(8, 6)] * 3 + [(4, 4)] * 2)
    (folder / "002.png").write_bytes((folder / "002.png").read_bytes()[:40])
    (folder / "sub").mkdir()
    Image.new("L", (4, 4), 77).save(folder / "sub" / "grey.JPG")
    (folder / "notes.txt").write_text("not a picture")
    paths = files_below(folder)
    assert len(paths) == 6
    places, (batch,) = read_references(paths)
    assert places == [0, 1, 3, 4, 5]
    assert [tuple(picture.shape) for picture in batch.samples] == [(3, 6, 8)] * 2 + [(3, 4, 4)] * 3
    assert batch.samples[1][:, 0, 0].tolist() == [1, 0, 255]
    assert read_references([folder / "002.png"]) == ([], [])


def save_wav(path, values, width, channels=1, rate=8000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(values)
    return path


@pytest.mark.parametrize(
    ("width", "raw"),
    [
        (1, np.array([128, 192, 0], np.uint8).tobytes()),
        (2, np.array([0, 2**14, -(2**15)], "<i2").tobytes()),
        (3, b"\x00\x00\x00" + b"\x00\x00\x40" + b"\x00\x00\x80"),
        (4, np.array([0, 2**30, -(2**31)], "<i4").tobytes()),
    ],
)
def test_wav_files_of_all_widths(tmp_path, width, raw):
    sound, rate = read_sound(save_wav(tmp_path / "s.wav", raw, width))
    assert sound.tolist() == [0, 0.5, -1]
    assert rate == 8000


@pytest.mark.parametrize("content", [b"", b"RIFF", b"not a sound at all"])
def test_a_file_that_is_no_sound_is_named(tmp_path, content):
    (tmp_path / "s.wav").write_bytes(content)
    with pytest.raises(DataError, match=r"s\.wav is not a wav file"):
        read_sound(tmp_path / "s.wav")


def test_sounds_of_a_folder(tmp_path):
    stereo = np.array([[2**14, 0], [2**14, 2**14]], "<i2").tobytes()
    save_wav(tmp_path / "a.wav", stereo, 2, channels=2, rate=16_000)
    save_wav(tmp_path / "b.wav", b"", 2)
    (tmp_path / "c.wav").write_bytes(b"RIFF")
    save_wav(tmp_path / "d.wav", np.array([2**14], "<i2").tobytes(), 2)
    places, batches = read_references(files_below(tmp_path))
    assert [[sound.tolist() for sound in batch.samples] for batch in batches] == [[[0.25, 0.5]], [[0.5]]]
    assert [batch.sample_rate for batch in batches] == [16_000, 8000]
    assert places == [0, 3]


def test_statistics_there_and_back(tmp_path):
    metric = FID(lambda batch: batch.samples)
    rows = torch.randn(20, 4, dtype=torch.float64)
    metric.use_rows(rows)
    write_statistics(tmp_path / "s.safetensors", metric.statistics())
    again = read_statistics(tmp_path / "s.safetensors")
    assert int(again["n"]) == 20
    torch.testing.assert_close(again["sigma"], rows.T.cov())


def test_statistics_of_clean_fid(tmp_path):
    np.savez_compressed(tmp_path / "fid.npz", mu=np.zeros(3), sigma=np.eye(3))
    np.savez_compressed(tmp_path / "kid.npz", feats=np.ones((5, 3), np.float32))
    fid, kid = FID(lambda batch: batch.samples), KID(lambda batch: batch.samples)
    fid.use_statistics(read_statistics(tmp_path / "fid.npz"))
    kid.use_statistics(read_statistics(tmp_path / "kid.npz"))
    rows = torch.randn(50, 3)
    covariance = rows.double().T.cov()
    root = torch.linalg.eigvalsh(covariance).sqrt().sum()
    assert fid.reduce(rows) == pytest.approx(
        float(rows.double().mean(0).square().sum() + covariance.trace() + 3 - 2 * root)
    )
    assert kid.statistics()["features"].shape == (5, 3)


def test_a_pickled_statistics_file_is_not_opened(tmp_path):
    np.savez(tmp_path / "evil.npz", mu=np.array([{"a": 1}], dtype=object), sigma=np.eye(1))
    with pytest.raises(DataError, match="cannot read the statistics"):
        read_statistics(tmp_path / "evil.npz")


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"mean": np.zeros(3)}, "statistics have mu and sigma"),
        ({"mu": np.zeros(3), "sigma": np.eye(2)}, "do not belong together"),
        ({"mu": np.full(2, np.nan), "sigma": np.eye(2)}, "NaN"),
        ({"feats": np.zeros(3)}, r"not \(samples, features\)"),
    ],
)
def test_statistics_that_cannot_be_used(tmp_path, tensors, said):
    np.savez(tmp_path / "s.npz", **tensors)
    with pytest.raises(DataError, match=said):
        read_statistics(tmp_path / "s.npz")


def test_statistics_files_by_their_names(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read_statistics(tmp_path / "absent.npz")
    (tmp_path / "torn.safetensors").write_bytes(b"\x01")
    with pytest.raises(DataError, match="cannot read"):
        read_statistics(tmp_path / "torn.safetensors")
    with pytest.raises(DataError, match=r"\.safetensors or \.npz"):
        read_statistics(tmp_path / "stats.pkl")
    with pytest.raises(DataError, match=r"as \.safetensors"):
        write_statistics(tmp_path / "stats.npz", {"mu": torch.zeros(1)})
