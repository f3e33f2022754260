"""Rows by sample: the same whatever the batches, in memory or in files; damaged or missing ones are named."""

import numpy as np
import pytest

from thg.errors import ProfileError
from thg.rows import RowFiles, RowFolder


def values(samples):
    return {"score": np.array([[10.0 * sample] for sample in samples]), "norm": np.array(samples, np.float32)}


@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_are_read_in_the_order_of_samples_whatever_the_batches(tmp_path, in_memory):
    folder = None if in_memory else tmp_path / "rows"
    files = RowFiles(folder)
    assert files.done() == set()
    assert files.read() == {}
    for batch in ([4, 5], [0, 1, 2], [2, 3]):  # two processes have measured sample 2
        files.add(batch, values(batch))
    assert files.done() == {0, 1, 2, 3, 4, 5}
    found = files.read()
    assert found["norm"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (found["score"].shape, found["norm"].dtype) == ((6, 1), np.float32)
    assert files.read([5, 1])["norm"].tolist() == [5, 1]
    assert files.has([4, 5]) is not in_memory
    assert not files.has([4])


def test_a_sample_may_have_several_rows_or_none(tmp_path):
    files = RowFiles(tmp_path)
    files.add([0, 1, 2], {"values": np.arange(4.0)}, counts=[1, 0, 3])
    assert files.done() == {0, 1, 2}
    assert files.read([2, 0])["values"].tolist() == [1, 2, 3, 0]
    assert files.read([1])["values"].tolist() == []


def test_missing_and_damaged_rows_are_named(tmp_path):
    files = RowFiles(tmp_path, error=ProfileError)
    files.add([0, 1], values([0, 1]))
    with pytest.raises(ProfileError, match="sample 2 is not measured yet"):
        files.read(range(4))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ProfileError, match=r"000000-000001.* remove it, and its samples are measured again"):
        files.done()


def test_kinds_share_a_folder_that_belongs_to_its_settings(tmp_path):
    first = RowFolder(tmp_path / "rows", {"seed": 0}, date="2026-01-01")
    first["plain"].add([0], values([0]))
    first["plain 2"].add([1], values([1]))
    again = RowFolder(tmp_path / "rows", {"seed": 0}, date="2027-01-01")
    assert again.date == "2026-01-01"
    assert (again["plain"].done(), again["plain 2"].done(), again["other"].done()) == ({0}, {1}, set())
    with pytest.raises(ProfileError, match=r"other settings \(seed\)"):
        RowFolder(tmp_path / "rows", {"seed": 1})
