"""Metrics of packages: run in a Python of their own on the files of samples, and measured once."""

import shlex
import sys

import pytest

pytest.importorskip("diffusers", reason="the benchmark needs diffusers")

from tests.bench.runs import METHODS, config_in, measured, quietly, run_in, save_model
from thg.bench.metrics import MetricError, PackageMetric, load_metrics
from thg.media import worst_mean

PACKAGE = """
import numpy as np
def im2tensor(pixels): return pixels / 127.5 - 1
class LPIPS:
    def __init__(self, net, verbose):
        print("Setting up", net)
    def eval(self): return self
    def __call__(self, a, b): return np.abs(a - b).mean()
"""


@pytest.fixture
def other_python(tmp_path):
    """A Python in whose environment there is a package with the interface of lpips."""
    (tmp_path / "lpips").mkdir()
    (tmp_path / "lpips" / "__init__.py").write_text(PACKAGE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(tmp_path))} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_package_measures_the_files_once(other_python, tmp_path):
    save_model(tmp_path)
    config = config_in(tmp_path, count=3, metrics=["psnr", "lpips"], packages={"lpips": other_python}, methods=METHODS)
    quietly(config, tmp_path / "run")
    rows = {row.name: row for row in measured(config, tmp_path / "run").rows}
    assert rows["CFG"].metrics["lpips"] is None
    series = run_in(config, tmp_path / "run").series()["thg uniform"]
    (file,) = (series.path / "measured").glob("lpips-*")
    scores = series.measured(file.name).read()["values"].tolist()
    assert len(scores) == 3
    assert rows["thg uniform"].metrics["lpips"] == pytest.approx(sum(scores) / 3)
    assert rows["thg uniform"].worst["lpips"] == worst_mean(scores, higher_is_better=False) == max(scores)
    assert rows["thg uniform"].metrics["lpips"] != rows["CFG-Cache"].metrics["lpips"] > 0
    (tmp_path / "lpips" / "__init__.py").write_text(PACKAGE.replace(".mean()", ".mean() / 0"))
    assert measured(config, tmp_path / "run").rows[2].metrics == rows["thg uniform"].metrics  # not measured again


def test_a_package_that_fails_leaves_a_dash_with_its_reason(other_python, tmp_path):
    save_model(tmp_path)
    (tmp_path / "lpips" / "__init__.py").write_text("raise RuntimeError('no weights')")
    config = config_in(tmp_path, count=2, metrics=["lpips", "psnr"], packages={"lpips": other_python}, methods=METHODS)
    quietly(config, tmp_path / "run")
    found = measured(config, tmp_path / "run")
    assert found.skipped == [("lpips", f"lpips failed in {other_python}: RuntimeError: no weights")]
    assert all(row.metrics["psnr"] is not None for row in found.rows[1:])


def test_a_package_that_is_missing_or_fails_says_so(other_python, tmp_path):
    (reason,) = (
        reason for _, reason in load_metrics(["image_reward"], packages={"image_reward": other_python}).skipped
    )
    assert f"{other_python} has no package image-reward; install it in an environment of its own" in reason
    assert "pip install 'tortoise-hare-guidance[metric-packages]'" in reason
    assert '[packages] image_reward = "/path/to/bin/python"' in reason
    (reason,) = (reason for _, reason in load_metrics(["lpips"], packages={"lpips": str(tmp_path / "absent")}).skipped)
    assert f"cannot run {tmp_path / 'absent'}" in reason
    beside = load_metrics(["lpips"], packages={"lpips": "./python"}, base=tmp_path)  # relative to the configuration
    assert [metric.python for metric in beside.of_packages] == [other_python]
    job = {"samples": ["nowhere.png"], "plain": ["nowhere.png"], "prompts": [""], "references": []}
    with pytest.raises(MetricError, match=r"lpips failed in .*FileNotFoundError.*nowhere\.png"):
        PackageMetric("lpips", other_python).values(job)


def test_packages_of_sounds_leave_pictures_alone():
    assert [PackageMetric(name).hears for name in ("lpips", "image_reward", "clap_score", "fad")] == [
        False,
        False,
        True,
        True,
    ]
