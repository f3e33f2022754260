"""The batch that metrics are given, and what all metrics have in common: streaming and merging."""

import pytest
import torch

from thg.bench.metrics import Batch, MetricError
from thg.bench.metrics.fidelity import PSNR
from thg.errors import NonFiniteError


def pictures(count, seed=0, side=16):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_the_mean_has_the_same_bits_however_the_samples_are_split():
    samples, references = pictures(30), pictures(30, seed=1)
    whole = PSNR()
    whole.update(Batch(samples, references=references))
    parts = [PSNR() for _ in range(3)]
    for number in reversed(range(30)):
        one = slice(number, number + 1)
        parts[number % 3].update(Batch(samples[one], references=references[one]))
    assert whole.reduce(torch.cat([part.rows() for part in parts])) == whole.compute()


def test_the_worst_are_the_worst_five_percent():
    scores = torch.arange(40.0)
    assert PSNR().worst(scores) == 0.5
    assert PSNR().worst(scores[:3]) == 0.0


def test_nothing_counted_is_none_not_a_number():
    assert PSNR().compute() is None


def test_bytes_and_floats_are_the_same_picture():
    original = torch.randint(0, 256, (2, 3, 12, 12), dtype=torch.uint8)
    batch = Batch(original.float() / 255)
    assert torch.equal(batch.as_stored().samples, original)
    assert torch.equal(Batch(original).pictures(), batch.pictures())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Batch(2 * pictures(2) - 1), r"\(x \+ 1\) / 2"),
        (lambda: Batch(pictures(2)[0]), "expected \\(batch, 1 or 3"),
        (lambda: Batch(torch.zeros(1, 3, 4, 4, dtype=torch.int64)), "torch.uint8"),
        (lambda: Batch(pictures(2), prompts=("one",)), "2 samples but 1 prompts"),
        (lambda: Batch(pictures(2), references=pictures(3)), "same size"),
        (lambda: PSNR().update(Batch(pictures(2))), "references="),
    ],
)
def test_errors_say_what_to_write(make, said):
    with pytest.raises(MetricError, match=said):
        make()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_picture_that_is_not_finite_is_refused(bad):
    with pytest.raises(NonFiniteError):
        Batch(torch.full((1, 3, 4, 4), bad))
