"""Reference folders and statistics files: what people really have, and what goes wrong."""

import numpy as np
import pytest
import torch
from PIL import Image

from thg.bench.inputs import files_below, read_references
from thg.bench.metrics.distribution import read_statistics
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
    places, batch = read_references(paths)
    assert places == [0, 1, 3, 4, 5]
    assert [tuple(picture.shape) for picture in batch.samples] == [(3, 6, 8)] * 2 + [(3, 4, 4)] * 3
    assert batch.samples[1][:, 0, 0].tolist() == [1, 0, 255]
    assert read_references([folder / "002.png"]) == ([], None)


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
    assert kid.reduce(rows) > 0


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
