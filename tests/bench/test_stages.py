"""The stages in one process: what is measured stays measured, runs share samples, less can be kept."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("diffusers", reason="the benchmark needs diffusers")

from tests.bench.rehearsal import TABLES, small, toml
from tests.bench.runs import METHODS, STEPS, config_in, quietly, report, run_in, save_model, silent
from thg.bench import metrics, samples
from thg.bench.config import load_config, override
from thg.bench.measurer import measure_samples
from thg.bench.metrics.base import MeanMetric
from thg.bench.report import rebuild_report
from thg.bench.runner import make_samples
from thg.bench.samples import load_prompts, reference_files
from thg.bench.store import BenchmarkRun, RunFolderError
from thg.cli import main
from thg.processes import Shard

STATISTICS = Path(metrics.__file__).parent / "judge_reference.safetensors"
METRICS = ["psnr", "judge_accuracy", "judge_frechet"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages")
    save_model(folder)
    prompts = (folder / "prompts.txt").read_text().splitlines()
    lines = [f'"{prompt}",{number}' for number, prompt in enumerate(prompts)]
    (folder / "pairs.csv").write_text("\n".join(["caption,id", *lines]) + "\n")
    (folder / "references").mkdir()
    for number in range(6):
        Image.fromarray(np.full((32, 32), 40 * number, np.uint8)).save(folder / "references" / f"{number}.png")
    return folder


def config(home, **changes):
    given = {
        "metrics": METRICS,
        "model": {"source": str(home / "model"), "call": {"height": 32, "width": 32}},
        "prompts": {"file": "pairs.csv", "column": "caption"},
        "references": {"folder": "references", "file": "{id}.png", "statistics": {"judge_frechet": str(STATISTICS)}},
        "count": 4,
        "batch_size": 2,
    }
    return config_in(home, **{**given, **changes})


def files(run):
    return {path: path.stat().st_mtime_ns for path in run.store.rglob("*.*")}


# -- measuring


@pytest.fixture(scope="module")
def finished(home):
    quietly(config(home), home / "finished")
    return report(config(home), home / "finished")


def test_scores_and_features_lie_beside_the_samples_and_are_not_taken_again(home, finished, monkeypatch):
    run = run_in(config(home), home / "finished")
    before = files(run)
    names = {path.parent.name.partition("-")[0] for path in before if "measured" in path.parts}
    assert names == {"psnr", "judge_accuracy", "judge_frechet"}
    monkeypatch.setattr(MeanMetric, "measure", None)  # would fail if a network ran again
    assert rebuild_report(home / "finished", progress=silent) == finished
    assert files(run) == before


def test_each_process_measures_its_part_and_the_last_one_has_the_report(home, finished, tmp_path):
    shutil.copytree(home / "finished" / "store", tmp_path / "run" / "store")
    run = run_in(config(home), tmp_path / "run")
    for folder in run.store.glob("*/*/measured"):
        shutil.rmtree(folder)
    said = []
    assert measure_samples(run, Shard(1, 2), said.append) is None
    series = run.series()["thg uniform"]
    (scores,) = [folder.name for folder in (series.path / "measured").iterdir() if "accuracy" in folder.name]
    assert series.measured(scores).done() == {2, 3}
    assert "3 of 3 batches measured" in said
    assert measure_samples(run, Shard(0, 2), silent) is not None
    assert series.measured(scores).done() == {0, 1, 2, 3}


# -- references


def test_references_are_those_of_the_prompts_and_missing_ones_are_named(home, capsys):
    found = reference_files(config(home))
    assert [path.name for path in found.paths] == ["0.png", "1.png", "2.png", "3.png"]
    assert not found.complaint
    lacking = reference_files(config(home, count=8))
    assert lacking.complaint == f"2 of 8 reference files are missing in {home / 'references'}: 6.png, 7.png"
    file = home / "lacking.toml"
    file.write_text(toml(config(home, count=8).source))
    assert main(["bench", "--config", str(file), "--out", str(home / "lacking"), "--check"]) == 1
    assert "missing: 2 of 8 reference files are missing" in capsys.readouterr().out
    assert not (home / "lacking").exists()


def test_the_check_lists_everything_that_is_missing(home, tmp_path, capsys):
    """Model, prompts and packages in one list, each with what to do."""
    given = config(home).source
    given |= {"model": {"source": "nobody/nothing"}, "prompts": {"file": "absent.csv"}, "metrics": ["psnr", "lpips"]}
    given |= {"references": {"folder": "pictures"}, "files_from": "hf download nobody/pairs"}
    file = tmp_path / "absent.toml"
    file.write_text(toml({**given, "packages": {"lpips": str(tmp_path / "python")}}))
    assert main(["bench", "--config", str(file), "--out", str(tmp_path / "run"), "--check"]) == 1
    said = capsys.readouterr().out
    assert "missing: the model nobody/nothing: hf download nobody/nothing" in said
    assert re.search(r"missing: cannot read the prompt file .*: hf download nobody/pairs\n", said)
    assert f"missing: the reference folder {tmp_path / 'pictures'}: hf download nobody/pairs" in said
    assert "missing: lpips: cannot run" in said


# -- the store


def test_runs_that_have_a_method_in_common_share_its_samples(home, tmp_path):
    store = tmp_path / "store"
    make_samples(BenchmarkRun.start(config(home), tmp_path / "one", store), Shard(), silent)
    one = {path: path.stat().st_mtime_ns for path in store.rglob("*.png")}
    methods = [METHODS[0], {"name": "another name", **{k: v for k, v in METHODS[1].items() if k != "name"}}]
    methods.append({"name": "new", "policy": "uniform", "nfe": STEPS + 2})
    other = config(home, methods=methods, title="another table")
    make_samples(BenchmarkRun.start(other, tmp_path / "two", store), Shard(), silent)
    both = {path: path.stat().st_mtime_ns for path in store.rglob("*.png")}
    assert len(both) - len(one) == 4  # the new method alone
    assert {path: both[path] for path in one} == one
    others = [{"seed": 1}, {"guidance_scale": 4.0}, {"steps": STEPS + 1}]
    keys = {
        BenchmarkRun.start(config(home, **change), tmp_path / "k", store).series()["CFG"].key
        for change in [{}, *others]
    }
    assert len(keys) == 4


def test_the_room_is_estimated_and_asked_for_before_the_run(home, tmp_path, monkeypatch):
    said = []
    make_samples(run_in(config(home), tmp_path / "run"), Shard(), said.append)
    assert said[0].startswith("12 samples to make, about ")
    assert said[-1] == "6 of 6 batches sampled"  # two batches of three methods
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1000))
    with pytest.raises(RunFolderError, match=r"only 1\.00kB are free; choose another disk with --store"):
        quietly(config(home), tmp_path / "full")
    assert not (tmp_path / "full" / "store" / "series").exists()


def test_thirty_thousand_pictures_of_512_pixels_take_about_15_gb():
    assert 14e9 < 30_000 * samples.Samples(torch.zeros(1, 3, 512, 512)).bytes_on_disk() < 18e9


# -- fidelity


def test_one_picture_equal_to_plain_cfg_neither_makes_the_mean_infinite_nor_leaves_the_plot(home, tmp_path):
    methods = [METHODS[0], {"name": "every", "policy": "uniform", "nfe": 2 * STEPS}, METHODS[1]]
    same = config(home, methods=methods, metrics=["psnr"])
    quietly(same, tmp_path / "run")
    table = report(same, tmp_path / "run")
    assert "**100.00** / 100.00" in table
    assert "∞" not in table
    document = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert document["methods"][1]["worst"] == {"psnr": 100.0}
    assert (tmp_path / "run" / "frontier.png").exists()


# -- small runs of every configuration


def test_a_calibration_takes_more_prompts_than_are_sampled(home, tmp_path):
    """`--count 2` works with `calibrate = 5`: the plan does not depend on the number of samples."""
    methods = [METHODS[0], {"name": "THG", "policy": "thg", "rho": 1.1, "calibrate": 5}]
    given = config(home, methods=methods, count=2)
    assert len(load_prompts(given).prompts) == 20
    quietly(given, tmp_path / "run")
    plan = run_in(given, tmp_path / "run").series()["THG"].prepared["plan"]
    more = override(given, count=3)
    assert run_in(more, tmp_path / "run").series()["THG"].prepared["plan"] == plan


def test_the_papers_tables_are_made_small_by_the_rehearsal(home):
    for name in ("sd15_ddim", "sd35_large", "audioldm2"):
        file = home / f"{name}.toml"
        file.write_text(toml(small(TABLES / f"{name}.toml", home)))
        assert load_config(file).references.file
