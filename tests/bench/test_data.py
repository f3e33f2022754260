"""Reference folders and statistics files: what people really have, and what goes wrong."""

import pickle

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from thg.bench.inputs import files_below, read_references
from thg.bench.metrics.frechet import read_statistics
from thg.bench.metrics.judge import JudgeFrechet
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
    places, batch = read_references(paths)
    assert places == [0, 1, 3, 4, 5]
    assert [tuple(picture.shape) for picture in batch.samples] == [(3, 6, 8)] * 2 + [(3, 4, 4)] * 3
    assert batch.samples[1][:, 0, 0].tolist() == [1, 0, 255]
    assert read_references([folder / "002.png"]) == ([], None)


def test_statistics_there_and_back(tmp_path):
    rows = torch.randn(50, 3, dtype=torch.float64)
    save_file({"mu": rows.mean(0), "sigma": rows.T.cov(), "n": torch.tensor(50)}, tmp_path / "s.safetensors")
    metric = JudgeFrechet(lambda batch: batch.samples)
    metric.use_statistics(read_statistics(tmp_path / "s.safetensors"))
    assert metric.reduce(rows) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"mean": torch.zeros(3)}, "statistics have mu, a row, and sigma"),
        ({"mu": torch.zeros(3), "sigma": torch.eye(2)}, "statistics have mu, a row, and sigma"),
        ({"mu": torch.full((2,), float("nan")), "sigma": torch.eye(2)}, "NaN"),
    ],
)
def test_statistics_that_cannot_be_used(tmp_path, tensors, said):
    save_file(tensors, tmp_path / "s.safetensors")
    with pytest.raises(DataError, match=said):
        read_statistics(tmp_path / "s.safetensors")


@pytest.mark.parametrize("content", [None, b"\x01", pickle.dumps({"mu": 1})])
def test_a_file_that_holds_no_statistics_is_not_read(tmp_path, content):
    if content is not None:
        (tmp_path / "s.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="cannot read the statistics"):
        read_statistics(tmp_path / "s.safetensors")
