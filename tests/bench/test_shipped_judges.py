"""The metrics of sounds and of emoji by their judges, and the whole way of a benchmark on both shipped models."""

import json
from pathlib import Path

import pytest
import torch

from tests.bench.runs import quietly, report
from thg.bench.config import load_config, parse_config
from thg.bench.metrics import Batch, MetricError, load_metrics
from thg.bench.metrics.fidelity import SNR, LogMelDistance
from thg.bench.metrics.frechet import read_statistics
from thg.bench.metrics.judges import sounds_asked
from thg.models.emoji_prompts import emoji_names
from thg.models.judge import SOUND_REFERENCE_PATH, EmojiJudge, SoundJudge
from thg.models.sounds import SAMPLES, all_sounds, sound_prompt, sound_prompts

TABLES = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def waves():
    return 0.3 * torch.randn(6, SAMPLES, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)


def test_fidelity_of_sounds_by_hand(waves):
    batch = Batch(0.9 * waves, references=waves)
    assert SNR().score(batch).tolist() == pytest.approx([20.0] * 6, abs=1e-3)
    quieter = LogMelDistance().score(batch)
    assert quieter.tolist() == pytest.approx([0.915] * 6, abs=0.02)  # 20 log10(1 / 0.9)
    assert SNR().score(Batch(waves, references=waves)).tolist() == [100.0] * 6


def test_sounds_are_judged_as_they_are_stored(waves):
    stored = Batch(waves).as_stored().sounds()
    assert not torch.equal(stored, waves)
    assert torch.allclose(stored, waves.clamp(-1, 1), atol=2e-5)


def test_the_judge_of_sounds_hears_what_was_asked_for(waves):
    prompts = tuple(prompt for prompt, _ in sound_prompts(6))
    everything, instrument, frechet = load_metrics(["sound_accuracy", "instrument_accuracy", "sound_frechet"]).metrics
    verdict, asked = SoundJudge.load()(waves), sounds_asked(prompts)
    for metric in (everything, instrument, frechet):
        metric.update(Batch(waves, prompts))
    assert everything.compute() == verdict.right(asked)["all"].double().mean()
    assert instrument.compute() == verdict.right(asked)["source"].double().mean()
    frechet.use_statistics(read_statistics(SOUND_REFERENCE_PATH))
    assert frechet.compute() > 0


def test_only_prompts_of_the_judge_are_understood():
    assert sounds_asked((sound_prompt(all_sounds()[70]),)) == [all_sounds()[70]]
    with pytest.raises(MetricError, match="'a sad banjo' is none of the judge's"):
        sounds_asked(("a sad banjo",))


def test_recall_counts_the_captions_that_fit_better():
    judge, captions = EmojiJudge.load(), emoji_names().captions
    pictures = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    asked = ("panda", "lion", "red heart", captions[-1])
    first, fifth, _ = load_metrics(["emoji_recall_1", "emoji_recall_5", "emoji_frechet"]).metrics
    for metric in (first, fifth):
        metric.update(Batch(pictures, asked))
    ranks = judge.ranks(2 * pictures - 1, [captions.index(name) for name in asked], captions)
    assert first.rows().tolist() == (ranks < 1).double().tolist()
    assert fifth.rows().tolist() == (ranks < 5).double().tolist()
    with pytest.raises(MetricError, match="'a bag' is none of the judge's captions"):
        first.update(Batch(pictures[:1], ("a bag",)))


@pytest.mark.parametrize(
    ("table", "numbers"),
    [
        ("shipped_audio", ["snr", "log_mel", "sound_accuracy", "instrument_accuracy", "sound_frechet"]),
        ("shipped_emoji_dpm20", ["psnr", "ssim", "emoji_recall_1", "emoji_recall_5", "emoji_frechet"]),
    ],
)
def test_the_tables_of_the_shipped_models_small(table, numbers, tmp_path):
    config = load_config(TABLES / f"{table}.toml")
    rows = [{"name": "CFG", "policy": "cfg"}, {"name": "thg", "policy": "tapered", "nfe": 10}]
    config = parse_config({**config.source, "steps": 6, "count": 2, "batch_size": 2, "methods": rows}, config.base)
    quietly(config, tmp_path / "run")
    assert "| thg | 10 |" in report(config, tmp_path / "run")
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert found["missing"] == {}
    ours = next(row for row in found["methods"] if row["name"] == "thg")
    assert all(ours["metrics"][name] is not None for name in numbers)
    assert numbers[0] in ours["worst"]
