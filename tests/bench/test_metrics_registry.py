"""Metrics by name: the ready ones, the skipped ones with their reasons, the unknown ones."""

import pytest
import torch

from thg.bench.metrics import Batch, MetricError, load_metrics, metric_names

NOWHERE = {
    "inception": "nowhere/inception.pt",
    "clip_score": "thg-tests/absent-clip",
    "cmmd": "thg-tests/absent-clip-336",
}


def test_what_is_missing_is_named_and_the_others_go_on():
    without_judge = [name for name in metric_names() if "judge" not in name and "tone" not in name]
    loaded = load_metrics(without_judge, NOWHERE)
    assert [metric.name for metric in loaded.metrics] == ["psnr", "ssim"]
    reasons = dict(loaded.skipped)
    assert set(reasons) == set(without_judge) - {"psnr", "ssim"}
    for name, missing in {
        "fid": "nowhere/inception.pt",
        "kid": "nowhere/inception.pt",
        "clip_score": "thg-tests/absent-clip",
        "cmmd": "thg-tests/absent-clip-336",
        "lpips": "pip install lpips",
        "fad": "pip install frechet-audio-distance",
        "image_reward": "pip install image-reward",
        "clap_score": "pip install laion-clap",
    }.items():
        assert missing in reasons[name].replace("\\", "/")


def test_names_are_those_of_the_metrics_and_order_is_kept():
    def judge(pictures, asked):
        raise AssertionError("not asked")

    loaded = load_metrics(["judge_frechet", "ssim", "tone_accuracy", "ssim", "judge_accuracy"], judge=judge)
    assert [metric.name for metric in loaded.metrics] == ["judge_frechet", "ssim", "tone_accuracy", "judge_accuracy"]
    assert loaded.skipped == []


def test_fid_and_kid_run_the_network_once(tmp_path):
    class Layers(torch.nn.Module):
        def forward(self, x):
            return x[:, 0, 0, :256].repeat(1, 8)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = Layers()

    torch.jit.save(torch.jit.script(Network()), str(tmp_path / "network.pt"))
    fid, kid = load_metrics(["fid", "kid"], {"inception": str(tmp_path / "network.pt")}).metrics
    batch = Batch(torch.rand(2, 3, 16, 16))
    assert fid._embed(batch) is kid._embed(batch)


def test_an_unknown_metric_is_an_error_that_lists_them():
    with pytest.raises(MetricError, match="no metric 'fidd'; there are psnr"):
        load_metrics(["fidd"])
