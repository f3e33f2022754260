"""The metrics of the shipped models, with a real judge of random weights and with one that is told what to say."""

from types import SimpleNamespace

import pytest
import torch

from thg.bench.metrics import Batch, MetricError
from thg.bench.metrics.frechet import Gaussian, frechet_distance
from thg.bench.metrics.judges import find_word, garment_metrics, garments_asked
from thg.models.garments import GARMENTS, TONE_WORDS, TONES, benchmark_prompts
from thg.models.judge import Judge, JudgeNetwork


@pytest.fixture(scope="module")
def judge():
    torch.manual_seed(0)
    return Judge(JudgeNetwork(), torch.tensor([[0.4, 0.6]]).repeat(len(GARMENTS), 1))


def test_accuracies_by_hand():
    def says(pictures, asked):
        assert asked.tolist() == [4, 9, 0]
        return SimpleNamespace(
            garments=torch.tensor([4, 9, 6]), tones=torch.tensor([0, 1, 2]), features=torch.zeros(3, 2)
        )

    accuracy, tone, _ = garment_metrics(lambda: says)
    batch = Batch(torch.rand(3, 1, 8, 8), prompts=("a dark coat", "a light ankle boot", "a tee"))
    accuracy.update(batch)
    tone.update(batch)
    assert accuracy.compute() == pytest.approx(2 / 3)
    assert tone.compute() == pytest.approx(1 / 2)
    assert len(tone.rows()) == 2, "the prompt without a tone does not count"


def test_the_judge_looks_once_at_a_batch_that_its_metrics_share():
    looks = []

    def counted(pictures, asked):
        looks.append(len(pictures))
        right = garments_asked(("a dark coat",) * len(pictures))
        return SimpleNamespace(garments=right, tones=right, features=torch.zeros(len(pictures), 2))

    metrics = garment_metrics(lambda: counted)
    for count in (2, 3):
        batch = Batch(torch.rand(count, 1, 8, 8), prompts=("a dark coat",) * count)
        for metric in metrics:
            metric.update(batch)
    assert looks == [2, 3]


def test_the_real_judge_is_asked_as_it_wants_to_be(judge):
    prompts, garments, tones = zip(*benchmark_prompts(per_garment=3), strict=True)
    pictures = torch.rand(len(prompts), 1, 32, 32, generator=torch.Generator().manual_seed(0))
    verdict = judge(2 * pictures - 1, torch.tensor(garments))
    metrics = garment_metrics(lambda: judge)
    for metric in metrics:
        metric.update(Batch(pictures.expand(-1, 3, -1, -1), prompts=prompts))
    assert metrics[0].compute() == pytest.approx(float((verdict.garments == torch.tensor(garments)).float().mean()))
    assert metrics[1].compute() == pytest.approx(float((verdict.tones == torch.tensor(tones)).float().mean()))
    references = torch.rand(40, 1, 32, 32, generator=torch.Generator().manual_seed(1)) ** 2
    real = Gaussian.of(judge(2 * references - 1).features)
    metrics[2].use_statistics({"mu": real.mean, "sigma": real.covariance})
    expected = frechet_distance(Gaussian.of(verdict.features), real)
    assert metrics[2].compute() == pytest.approx(expected, rel=1e-3)


def test_every_prompt_of_the_benchmark_is_understood():
    for prompt, garment, tone in benchmark_prompts(per_garment=3):
        assert garments_asked((prompt,)).tolist() == [garment]
        assert find_word(prompt, TONE_WORDS) == TONES[tone]


@pytest.mark.parametrize(
    ("prompt", "garment"),
    [("A T-Shirt, please", "t-shirt"), ("a t shirt", "t-shirt"), ("a shirt", "shirt"), ("ankle boots", "ankle boot")],
)
def test_the_longer_name_wins(prompt, garment):
    assert garments_asked((prompt,)).tolist() == [GARMENTS.index(garment)]


def test_a_prompt_without_a_garment_is_an_error_that_lists_them():
    with pytest.raises(MetricError, match=r"names no garment.*trousers"):
        garments_asked(("a dark coat", "a raincoatish thing"))
