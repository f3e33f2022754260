"""The metrics of packages in the packages themselves, with random weights: `make test-metrics`.

THG_METRICS names the Python in whose environment the packages are installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from thg.bench.metrics import MetricError, PackageMetric
from thg.bench.metrics.package_scripts import SCRIPTS
from thg.media import wav_bytes

PYTHON = os.environ.get("THG_METRICS", "")
VGGISH = os.environ.get("THG_VGGISH", "")  # a folder with the code of harritaylor/torchvggish
pytestmark = pytest.mark.skipif(not PYTHON, reason="run by make test-metrics, which installs the packages")
with_vggish = pytest.mark.skipif(not VGGISH, reason="its network is code on GitHub; THG_VGGISH names a folder with it")
PROMPTS = ["a red dog", "the cat", "rain falls", "a dog barks"]
RATE = 16_000


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The packages with random weights in a home of their own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("HF_HOME", str(home / "hf"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TORCH_HOME", str(home / "torch"))
        if VGGISH:
            shutil.copytree(VGGISH, home / "torch" / "hub" / "harritaylor_torchvggish_master")
        script = Path(__file__).with_name("random_weights.py")
        done = subprocess.run([PYTHON, script, home], check=True, capture_output=True, text=True)
        yield
    for file in done.stdout.split():
        Path(file).unlink()


def files(folder, kind, count, seed):
    generator, paths = np.random.default_rng(seed), []
    for number in range(count):
        path = folder / f"{seed}-{number}.{kind}"
        if kind == "png":
            low = generator.integers(0, 200, (1, 1, 3))
            Image.fromarray((low + generator.integers(0, 55, (40, 40, 3))).astype(np.uint8)).save(path)
        else:
            pitch = generator.uniform(100, 2000)
            path.write_bytes(wav_bytes(0.5 * np.sin(2 * np.pi * pitch * np.arange(2 * RATE) / RATE), RATE))
        paths.append(str(path))
    return paths


@pytest.fixture
def job(tmp_path):
    def make(name):
        kind = "wav" if SCRIPTS[name].hears else "png"
        samples, plain, references = (files(tmp_path, kind, 4, seed) for seed in range(3))
        return {"samples": samples, "plain": plain, "references": references, "prompts": PROMPTS, "network": ""}

    return make


@pytest.mark.parametrize("name", ["lpips", "image_reward", "clap_score"])
def test_a_score_for_each_sample_that_depends_on_it_alone(packages, job, name):
    given = job(name)
    twice = {key: 2 * value for key, value in given.items()}  # in one run: some weights are random in each
    scores = PackageMetric(name, PYTHON).require().values(twice)
    assert len(scores) == 8
    assert len(set(scores[:4])) == 4
    assert scores[:4] == pytest.approx(scores[4:], abs=1e-5)


def test_a_picture_has_no_distance_from_itself(packages, job):
    given = job("lpips")
    assert PackageMetric("lpips", PYTHON).values({**given, "plain": given["samples"]}) == [0.0] * 4


@pytest.mark.parametrize("name", ["fid", "kid", pytest.param("fad", marks=with_vggish)])
def test_the_distance_of_two_sets(packages, job, name):
    given = job(name)
    metric = PackageMetric(name, PYTHON).require()
    (distance,) = metric.values(given)
    (none,) = metric.values({**given, "samples": given["references"]})
    assert distance > max(none, 0.0)  # KID has no bias, so that of a set from itself is below 0


def test_fad_says_what_to_download(packages, job, monkeypatch, tmp_path):
    """torch.hub asks whether the code is to be trusted, and nobody is there to answer."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(MetricError, match=r"torch\.hub\.load\('harritaylor/torchvggish'.*trust_repo=True"):
        PackageMetric("fad", PYTHON).values(job("fad"))


@with_vggish
def test_fad_of_a_broken_file_is_an_error(packages, job, tmp_path):
    """The package itself returns -1."""
    given, broken = job("fad"), tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF")
    with pytest.raises(MetricError, match="fad failed"):
        PackageMetric("fad", PYTHON).values({**given, "samples": [str(broken)]})
