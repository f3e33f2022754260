"""Reference folders and statistics files: what people really have, and what goes wrong."""

import pickle

import pytest
import torch
from safetensors.torch import save_file

from thg.bench.metrics.frechet import FrechetMetric, read_statistics
from thg.bench.samples import files_below
from thg.prompts import DataError


def test_files_below_a_folder_in_the_order_of_their_names(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.png", "sub/a.JPG", "a.wav", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in files_below(tmp_path)] == ["a.wav", "b.png", "a.JPG"]


def test_statistics_there_and_back(tmp_path):
    rows = torch.randn(50, 3, dtype=torch.float64)
    save_file({"mu": rows.mean(0), "sigma": rows.T.cov(), "n": torch.tensor(50)}, tmp_path / "s.safetensors")
    metric = FrechetMetric(lambda batch: batch.samples)
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
