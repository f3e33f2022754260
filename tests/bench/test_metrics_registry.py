"""Metrics by name: the ready ones, the skipped ones with their reasons, the unknown ones."""

import sys

import pytest

from thg.bench.metrics import MetricError, load_metrics, metric_names
from thg.bench.metrics.package_scripts import SCRIPTS


def test_what_is_missing_is_named_and_the_others_go_on(tmp_path):
    """In a Python without any package."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    loaded = load_metrics(metric_names(), packages=dict.fromkeys(SCRIPTS, str(python)))
    assert [metric.name for metric in loaded.metrics] == [name for name in metric_names() if name not in SCRIPTS]
    reasons = dict(loaded.skipped)
    assert set(reasons) == set(SCRIPTS)
    for name, script in SCRIPTS.items():
        assert f"{python} has no package {script.package}; install it" in reasons[name]


def test_names_are_those_of_the_metrics_and_order_is_kept():
    def judge(pictures, asked):
        raise AssertionError("not asked")

    loaded = load_metrics(["judge_frechet", "ssim", "tone_accuracy", "ssim", "judge_accuracy"], judge=judge)
    assert [metric.name for metric in loaded.metrics] == ["judge_frechet", "ssim", "tone_accuracy", "judge_accuracy"]
    assert loaded.skipped == []


def test_an_unknown_metric_is_an_error_that_lists_them():
    with pytest.raises(MetricError, match="no metric 'fidd'; there are psnr"):
        load_metrics(["fidd"])
