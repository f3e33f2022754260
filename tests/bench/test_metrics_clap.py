"""CLAP score on a tiny ClapModel of the real class, saved and loaded as from the hub."""

import pytest
import torch

from tests.bench.tiny_models import save_clap
from thg.bench.metrics import Batch, MetricError
from thg.bench.metrics.clap import load_clap_score
from thg.errors import MissingExtraError

PROMPTS = ("a dog barks", "rain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_clap(tmp_path_factory.mktemp("clap"))


def sounds(samples):
    return 0.3 * torch.randn(2, samples, generator=torch.Generator().manual_seed(0))


def test_clap_score_against_the_models_own_logits(folder):
    from transformers import ClapModel, ClapProcessor

    metric = load_clap_score(str(folder))
    metric.update(Batch(sounds(6000), prompts=PROMPTS, sample_rate=8000))
    model, processor = ClapModel.from_pretrained(folder).eval(), ClapProcessor.from_pretrained(folder)
    expected = []
    for sound, prompt in zip(sounds(6000), PROMPTS, strict=True):
        tokens = processor.tokenizer(prompt, return_tensors="pt")
        heard = processor.feature_extractor(sound.numpy(), sampling_rate=8000, return_tensors="pt")
        with torch.no_grad():
            expected.append(float(model(**tokens, **heard).logits_per_audio / model.logit_scale_a.exp()))
    assert metric.rows().tolist() == pytest.approx(expected, abs=1e-5)


def test_a_long_sound_gives_the_same_number_each_time(folder):
    metric = load_clap_score(str(folder))
    batch = Batch(sounds(20_000), prompts=PROMPTS, sample_rate=8000)
    first, second, beginning = (
        metric.score(batch),
        metric.score(batch),
        metric.score(Batch(sounds(20_000)[:, :8000], prompts=PROMPTS, sample_rate=8000)),
    )
    assert torch.equal(first, second)
    assert torch.equal(first, beginning)


def test_a_long_text_is_cut_and_another_rate_resampled(folder):
    metric = load_clap_score(str(folder))
    metric.update(Batch(sounds(16_000), prompts=("rain falls " * 20, "a"), sample_rate=16_000))
    assert -1 <= metric.compute() <= 1


def test_errors(folder):
    with pytest.raises(MissingExtraError, match="hf download thg-tests/absent-clap"):
        load_clap_score("thg-tests/absent-clap")
    metric = load_clap_score(str(folder))
    with pytest.raises(MetricError, match="prompts="):
        metric.update(Batch(sounds(100), sample_rate=8000))
    with pytest.raises(MetricError, match="not pictures"):
        metric.update(Batch(torch.zeros(1, 3, 8, 8), prompts=("a",)))
