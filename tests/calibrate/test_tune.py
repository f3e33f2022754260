"""`thg.tune` compares: its planner keeps the tolerance on other samples, and is found again."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import thg
from tests import forked
from thg.calibration.tuning import bound
from thg.cli import main
from thg.errors import PlanError, ProfileError
from thg.ode.mixture import GaussianMixture
from thg.pipelines.identity import place_of
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import Tuned

PROMPTS = ["a dark ankle boot", "a light dress", "a medium coat", "a dark shirt"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THG_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("THG_TUNED")
    return tmp_path / "cache"


def wide_mixture() -> GaussianMixture:
    rng = np.random.default_rng(0)
    ones = torch.ones(8, dtype=torch.float64)
    return GaussianMixture(torch.from_numpy(rng.normal(size=(8, 16))), 0.7 * ones, ones, torch.arange(8) % 2)


def noise(count: int, seed: int, dimension: int = 16) -> torch.Tensor:
    return torch.randn(count, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("error", [0.005, 0.01])
def test_a_denoiser_keeps_the_tolerance_on_other_samples(error):
    schedule = thg.Schedule.flow(50, time=(1, 0))
    network = wide_mixture().denoiser(schedule, 0)
    tuned = thg.tune(
        network, None, error, x=noise(16, 1), schedule=schedule, guidance_scale=3.0, batch_size=16, progress=False
    )
    assert tuned.kept
    x = noise(64, 2)
    plain, found = (thg.sample(network, x, plan, schedule, guidance_scale=3.0) for plan in (thg.tapered(1.0), tuned))
    errors = (found.x - plain.x).norm(dim=1) / plain.x.norm(dim=1)
    assert float((errors <= error).double().mean()) >= 0.9
    assert found.nfe < plain.nfe
    ratios = errors / torch.tensor(found.summary.estimated_error, dtype=torch.float64)
    assert 0.5 < float(ratios.median()) < 2
    assert found.summary.tuned
    assert found.summary.note == str(tuned)
    assert "a prior" not in str(found.summary)


def test_another_shape_is_taken_where_it_is_clearly_better(tmp_path):
    """On this mixture errors do not come from the ends of a run: even leaps need fewer evaluations."""
    schedule = thg.Schedule.flow(50, time=(1, 0))
    network = GaussianMixture.random(seed=1, dimension=6).denoiser(schedule, 0)
    run = {"schedule": schedule, "guidance_scale": 3.0}
    tuned = thg.tune(network, None, x=noise(16, 1, 6), batch_size=16, progress=False, **run)
    assert tuned.kept
    assert tuned.shape == (0, 0)
    x = noise(64, 2, 6)
    plans = (thg.tapered(1.0), tuned, thg.tapered(tuned.nfe))
    plain, found, usual = (thg.sample(network, x, plan, **run) for plan in plans)
    assert found.nfe == usual.nfe == tuned.nfe
    errors, others = ((other.x - plain.x).norm(dim=1) / plain.x.norm(dim=1) for other in (found, usual))
    assert float((errors <= 0.01).double().mean()) >= 0.95
    assert float(others.quantile(0.95)) > 1.5 * float(errors.quantile(0.95))
    tuned.save(tmp_path / "tuned.json")
    assert Tuned.load(tmp_path / "tuned.json") == tuned


def test_a_pipeline_is_tuned_once_and_found_again(cache, tmp_path):
    pipe = thg.shipped_pipeline("eps")
    pipe.set_progress_bar_config(disable=True)
    arguments = {"steps": 16, "batch_size": 4, "progress": False, "folder": tmp_path / "runs"}
    tuned = thg.tune(pipe, PROMPTS, 0.02, **arguments)
    assert not thg.is_enabled(pipe)
    thg.enable(pipe, 0.5)
    assert tuned == thg.tune(pipe, PROMPTS, 0.02, layout=thg.Batched(), **arguments), "from the folder"
    assert thg.preview(pipe, steps=16) == thg.preview(pipe, 0.5, steps=16), "as it was before"
    thg.disable(pipe)
    (path,) = (cache / "tuned").iterdir()
    assert Tuned.load(path) == tuned
    run = {"num_inference_steps": 16, "output_type": "latent"}
    plans, pictures = [], []
    for plan in (tuned, None, thg.within()):
        with thg.enabled(pipe, plan):
            pictures.append(pipe("a light dress", generator=torch.Generator().manual_seed(1), **run).images)
            plans.append(thg.summary(pipe))
    assert torch.equal(pictures[0], pictures[1]), "a file does not change"
    assert plans[0].plan == plans[1].plan == thg.preview(pipe, steps=16, guidance_scale=7.5)
    assert "tuned" not in plans[2].note, "what is chosen explicitly is used"
    assert [plan.tuned for plan in plans] == [True, True, False]
    assert ["within a factor of 3 (not tuned)" in str(plan) for plan in plans] == [False, False, True]
    assert f"tuned on 4 samples: 95 % within {'2.0%' if tuned.kept else ''}" in plans[1].note
    with pytest.MonkeyPatch.context() as patch, thg.enabled(pipe):
        patch.setenv("THG_TUNED", "0")
        pipe("a light dress", generator=torch.Generator().manual_seed(1), **run)
        assert "tuned" not in thg.summary(pipe).note


def test_the_bound_covers_other_samples():
    rng = np.random.default_rng(0)
    covered = [float((rng.lognormal(size=400) <= bound(rng.lognormal(size=16))).mean()) for _ in range(200)]
    assert 0.95 <= np.mean(covered) < 0.99
    assert np.mean(np.array(covered) >= 0.95) >= 0.65
    assert bound(np.array([0.1, 0.3])) == 0.3


def test_what_cannot_be_kept_is_said():
    missed = Tuned(0.001, 6.0, 1.0, 0.004, 16, 20)
    assert not missed.kept
    assert str(missed) == "tuned on 16 samples: 95 % within 0.4%, not 0.1%"


def test_a_tolerance_that_was_not_kept_is_said_in_every_run():
    """Velocities with folds so fine that neighbouring states have unrelated ones: more evaluations hardly help."""
    schedule = thg.Schedule.flow(120, time=(1, 0))
    smooth = wide_mixture().denoiser(schedule, 0)

    def folded(x, t, conditional):
        return smooth(x, t, conditional) + 4 * torch.sin(1000 * x)

    run = {"schedule": schedule, "guidance_scale": 1.0}
    tuned = thg.tune(folded, None, 0.05, x=noise(4, 1), progress=False, **run)
    assert not tuned.kept
    assert tuned.reached > 0.05
    assert str(tuned).startswith(f"tuned on 4 samples: 95 % within {tuned.reached:.1%}, not 5.0% at ")
    assert thg.sample(folded, noise(2, 2), tuned, **run).summary.note.endswith(str(tuned))


SHAPED = (
    '{"format": "thg-tuned-1", "error": 0.01, "effort": 1, "factor": 1, "reached": 0.01, "samples": 1, "steps": 9, %s}'
)


@pytest.mark.parametrize("shape", ['"shape": [1]', '"shape": 3', '"shape": [1, -2]', '"form": 1'])
def test_a_file_with_another_shape_is_refused(tmp_path, shape):
    path = tmp_path / "tuned.json"
    path.write_text(SHAPED % '"shape": [1, 2]')
    assert Tuned.load(path).shape == (1, 2)
    path.write_text(SHAPED % shape)
    with pytest.raises(PlanError, match=r"run thg\.tune again"):
        Tuned.load(path)


@pytest.mark.parametrize("content", ["", "{}", '{"format": "thg-tuned-1"}', '{"format": "thg-tuned-9", "error": 0.01}'])
def test_what_is_no_file_of_it_is_refused(tmp_path, content):
    path = tmp_path / "tuned.json"
    path.write_text(content)
    with pytest.raises(PlanError, match=r"run thg\.tune again"):
        Tuned.load(path)


GOOD = {"format": "thg-tuned-1", "error": 0.01, "effort": 1, "factor": 1, "reached": 0.01, "samples": 1, "steps": 9}
NO_NUMBERS = ["abc", [], {}, None, math.nan, math.inf, -1, "1"]


@pytest.mark.parametrize("name", ["error", "effort", "factor", "reached", "samples", "steps", "nfe", "plain_nfe"])
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: str(value)[:8])
def test_a_file_with_something_else_for_a_number_is_refused(tmp_path, name, value):
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(GOOD))
    Tuned.load(path)
    path.write_text(json.dumps({**GOOD, name: value}))
    with pytest.raises(PlanError, match=r"run thg\.tune again"):
        Tuned.load(path)


def test_a_result_that_cannot_be_read_is_not_used_and_that_is_said(cache, caplog):
    pipe = thg.shipped_pipeline("eps")
    path = place_of(pipe)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**GOOD, "reached": "soon"}))
    with thg.enabled(pipe):
        pipe("a light dress", num_inference_steps=12, output_type="latent")
        assert not thg.summary(pipe).tuned
    assert f"not used: {path} is no file of Tuned.save" in caplog.text
    assert thg.preview(pipe, steps=12) == thg.preview(pipe, thg.within(), steps=12)


def test_a_result_that_cannot_be_remembered_is_returned(tmp_path, monkeypatch, caplog):
    """A home folder that cannot be written must not cost the result."""
    monkeypatch.setenv("THG_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_text("")
    tuned = thg.tune(thg.shipped_pipeline("eps"), PROMPTS[:1], 0.05, steps=8, progress=False)
    assert tuned.samples == 1
    assert "not remembered" in caplog.text


def test_a_result_of_another_network_says_so():
    tuned = Tuned(0.01, 1.2, 1.0, 0.009, 16, 20, 7.5, network="UNet:12345678:abcd")
    run = RunInfo.of(20, 7.5)
    assert tuned.said_of(replace(run, network="UNet:12345678")) == str(tuned)
    assert tuned.said_of(replace(run, network="Other:12345678")) == f"{tuned}, on another network (UNet:12345678)"


def test_a_run_that_differs_from_what_was_measured_says_so():
    tuned = Tuned(0.01, 1.2, 1.0, 0.009, 16, 20, 7.5)
    said = {(steps, scale): tuned.said_of(RunInfo.of(steps, scale)) for steps in (20, 50) for scale in (None, 7.5, 3.0)}
    assert said[20, 7.5] == said[20, None] == str(tuned) == "tuned on 16 samples: 95 % within 1.0%"
    assert {said[key] for key in set(said) - {(20, 7.5), (20, None)}} == {
        "tuned on 16 samples: 95 % within 1.0%, with 20 steps at guidance scale 7.5"
    }
    assert replace(tuned, guidance_scale=1.0).said_of(RunInfo.of(20, 0.0)) == str(tuned), "both are no guidance"
    schedule = thg.Schedule.flow(30, time=(1, 0))
    found = thg.sample(wide_mixture().denoiser(schedule, 0), noise(2, 1), tuned, schedule, guidance_scale=7.5)
    assert found.summary.note == said[50, 7.5]


def test_a_network_that_breaks_is_not_tuned(cache):
    """Late in a run; the scheduler's response is as usual."""
    pipe = thg.shipped_pipeline("eps")
    forward = pipe.unet.forward

    def breaks(sample, timestep, *args, **kwargs):
        (output,) = forward(sample, timestep, *args, **kwargs)
        return (output if timestep > 100 else output * math.nan,)

    pipe.unet.forward = breaks
    with pytest.raises(ProfileError, match="nothing to tune on this StableDiffusionPipeline: NaN or infinity"):
        thg.tune(pipe, PROMPTS[:1], steps=12, progress=False)
    assert not cache.exists()


def test_more_effort_is_more_evaluations():
    counts = [thg.within(effort=effort).plan(RunInfo.of(60, 5.0)).evaluations for effort in (0.5, 1.0, 2.0)]
    assert counts == sorted(set(counts))
    with pytest.raises(PlanError, match="effort must lie between"):
        thg.within(effort=0)


def test_noise_cannot_be_tuned(cache):
    from diffusers import EulerAncestralDiscreteScheduler

    pipe = thg.shipped_pipeline("eps")
    pipe.scheduler = EulerAncestralDiscreteScheduler.from_config(pipe.scheduler.config)
    with pytest.raises(ProfileError, match=r"nothing to tune .* noise cannot be predicted"):
        thg.tune(pipe, PROMPTS[:1], steps=4, progress=False)


def test_a_folder_serves_several_tolerances_and_no_other_samples(tmp_path):
    schedule, calls = thg.Schedule.flow(50, time=(1, 0)), []
    network = wide_mixture().denoiser(schedule, 0)

    def counted(x, t, conditional):
        calls.append(len(x))
        return network(x, t, conditional)

    def tuned(error, seed=1):
        calls.clear()
        given = {"x": noise(4, seed), "schedule": schedule, "guidance_scale": 3.0, "progress": False}
        return thg.tune(counted, None, error, folder=tmp_path / "runs", **given)

    first = tuned(0.05)
    alone = sum(calls)
    assert 0 < first.nfe < first.plain_nfe == 100
    assert str(first).endswith(f"at {first.nfe} of 100 evaluations")
    tuned(0.08)
    assert 0 < sum(calls) < alone, "the plain runs are there"
    assert tuned(0.05) == first
    assert not calls
    with pytest.raises(ProfileError, match=r"with other settings \(start states\)"):
        tuned(0.05, seed=2)


def tune_into(folder: Path, out: Path) -> None:
    schedule = thg.Schedule.flow(50, time=(1, 0))
    network = wide_mixture().denoiser(schedule, 0)
    given = {"x": noise(8, 1), "schedule": schedule, "guidance_scale": 3.0, "batch_size": 1, "progress": False}
    thg.tune(network, None, 0.01, folder=folder, **given).save(out)


def test_killed_and_resumed_it_finds_the_same_and_measures_nothing_twice(tmp_path):
    cut = forked.start(tmp_path, tune_into, tmp_path / "cut", tmp_path / "cut.json")
    while len(finished := list((tmp_path / "cut").glob("[!.]*.safetensors"))) < 12:  # the 8 plain runs, some that leap
        assert cut.is_alive(), (tmp_path / "err.txt").read_text()
        time.sleep(0.002)
    os.kill(cut.pid, signal.SIGKILL)
    assert forked.finish(cut) == -signal.SIGKILL
    assert not (tmp_path / "cut.json").exists()
    before = {path: path.stat().st_mtime_ns for path in finished}
    for name in ("cut", "whole"):
        process = forked.start(tmp_path, tune_into, tmp_path / name, tmp_path / f"{name}.json")
        assert forked.finish(process) == 0, (tmp_path / "err.txt").read_text()
    assert (tmp_path / "cut.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in finished} == before


def test_another_process_may_end_and_remove_the_folder(tmp_path):
    """As `thg tune` does at its end: what is missing is measured again."""
    schedule, folder = thg.Schedule.flow(50, time=(1, 0)), tmp_path / "runs"
    network, calls = wide_mixture().denoiser(schedule, 0), []

    def disturbed(x, t, conditional):
        calls.append(len(x))
        if len(calls) in (150, 420):  # in the second batch of the plain runs; in those that leap
            shutil.rmtree(folder)
        return network(x, t, conditional)

    given = {"x": noise(4, 1), "schedule": schedule, "guidance_scale": 3.0, "batch_size": 1, "progress": False}
    alone = thg.tune(network, None, 0.05, **given)
    assert thg.tune(disturbed, None, 0.05, folder=folder, **given) == alone
    assert len(calls) > 420


def test_two_commands_at_once(cache):
    words = ["--model", "eps", "--samples", "3", "--steps", "12", "--batch-size", "1", "--error", "5%", "--quiet"]
    command = [sys.executable, "-m", "thg", "tune", *words]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate() for process in both]
    assert {process.returncode for process in both} == {0}, said
    assert said[0][0] == said[1][0]
    assert [path.suffix for path in (cache / "tuned").iterdir()] == [".json"]


def test_the_command(cache, capsys, tmp_path):
    words = [
        "tune",
        "--samples",
        "2",
        "--steps",
        "12",
        "--error",
        "5%",
        "--quiet",
        "--out",
        str(tmp_path / "mine.json"),
    ]
    code = main(words)
    shown = capsys.readouterr().out
    (path,) = (cache / "tuned").iterdir()  # and nothing that a resumed command would need
    found = Tuned.load(path)
    assert found == Tuned.load(tmp_path / "mine.json")
    assert code == (0 if found.kept else 1)
    assert str(found) in shown
    assert f"written to {tmp_path / 'mine.json'} and {path};" in shown
    assert main(["tune", "--model", "eps", "--samples", "1", "--steps", "8", "--error", "0.1%", "--quiet"]) == 0
    assert "at 16 of 16 evaluations" in (shown := capsys.readouterr().out)
    assert "it saves nothing: take more than 1 --samples, more --steps, or a larger --error" in shown
    with pytest.raises(SystemExit, match="2"):
        main(["tune", "--samples", "0"])
    assert "must be at least 1, not 0" in capsys.readouterr().err
