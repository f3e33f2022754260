"""Runs: the same pictures whatever the batches and processes, resumed where they stopped, nothing half-written."""

import json
import resource
import signal
import wave
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("diffusers", reason="the benchmark needs diffusers")

from diffusers import StableDiffusionPipeline

from tests.bench.runs import (
    METHODS,
    STEPS,
    config_in,
    pictures,
    quietly,
    records,
    report,
    run_in,
    sample_file,
    save_model,
    save_sound_model,
    silent,
)
from tests.calibrate.pipelines import stable_diffusion_3
from thg.bench.config import ModelTable, override
from thg.bench.report import _speedup
from thg.bench.runner import Runner
from thg.bench.samples import load_pipeline, run_pipeline
from thg.bench.store import RunFolderError
from thg.bench.tables import ConfigError
from thg.errors import PlanError, THGError
from thg.files import write_atomically
from thg.processes import Shard, find_shard, generators, sample_seed
from thg.prompts import DataError


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    save_model(folder)
    return folder


@pytest.fixture(scope="module")
def whole(home):
    """A finished run."""
    quietly(config_in(home), home / "whole")
    return home / "whole"


def levels(content):
    return np.array(Image.open(BytesIO(content))).astype(int)


# -- seeds


def test_noise_depends_on_seed_and_index_alone():
    assert sample_seed(0, 5) == sample_seed(0, 5)
    assert len({sample_seed(run, index) for run in range(10) for index in range(100)}) == 1000
    assert all(0 <= sample_seed(run, 3) < 2**63 for run in range(50))
    late, early = generators(7, [3, 4]), generators(7, [4])
    assert torch.equal(torch.randn(8, generator=late[1]), torch.randn(8, generator=early[0]))


# -- the same pictures


def test_a_run_has_every_sample_of_every_method(whole):
    expected = {f"{slug}/{i:06d}.png" for slug in ("cfg", "cfg-cache", "thg-uniform") for i in range(6)}
    assert set(pictures(whole)) == expected
    record = json.loads(records(whole)["cfg-cache/000004.json"])
    assert record["nfe"] == 9
    assert record["prompt"] == "a dress big"
    assert record["seed"] == sample_seed(0, 4)
    assert not list(whole.rglob("*.part"))


def test_other_batches_give_the_same_pictures(home, whole):
    """Other batch sizes round other last bits, so a pixel may move by one level of 255, and hardly any does."""
    quietly(override(config_in(home), batch_size=4), home / "fours")
    assert set(pictures(home / "fours")) == set(pictures(whole))
    for name, content in pictures(home / "fours").items():
        difference = np.abs(levels(content) - levels(pictures(whole)[name]))
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.01


def test_two_shards_together_are_the_whole_to_the_byte(home, whole):
    config = config_in(home)
    quietly(config, home / "shards", Shard(1, 2))
    assert len(pictures(home / "shards")) == 9
    quietly(config, home / "shards", Shard(0, 2))
    assert pictures(home / "shards") == pictures(whole)
    assert records(home / "shards") == records(whole)


def test_an_interrupted_run_goes_on_where_it_stopped_and_ends_with_the_same_bytes(home, whole):
    path = home / "resumed"
    config = config_in(home)
    quietly(config, path)
    kept = sample_file(path, "cfg/000000.png")
    written = kept.stat().st_mtime_ns
    for name in ("thg-uniform/000001", "cfg/000004"):
        sample_file(path, f"{name}.json").unlink()
    sample_file(path, "cfg/000004.png").unlink()
    sample_file(path, "thg-uniform/000001.png").write_bytes(b"half a pict")  # killed between picture and record
    quietly(config, path)
    assert pictures(path) == pictures(whole)
    assert records(path) == records(whole)
    assert kept.stat().st_mtime_ns == written


def test_more_prompts_later_leave_the_first_ones_as_they_are(home, whole):
    path = home / "longer"
    quietly(override(config_in(home), count=3), path)
    quietly(config_in(home), path)
    assert pictures(path) == pictures(whole)


def test_another_seed_makes_other_pictures(home, whole):
    quietly(override(config_in(home), seed=1, count=3), home / "seed1")
    assert pictures(home / "seed1")["cfg/000000.png"] != pictures(whole)["cfg/000000.png"]


# -- the paper's classes and schedulers


@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ("DPMSolverSinglestepScheduler", {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"}),
        ("DEISMultistepScheduler", {"solver_order": 2}),
    ],
)
def test_the_papers_second_order_solvers_cost_what_they_should(home, scheduler, options):
    model = {"source": "model", "scheduler": scheduler, "scheduler_options": options, "leave_out": ["safety_checker"]}
    quietly(config_in(home, model=model, count=2), home / scheduler)
    assert json.loads(records(home / scheduler)["cfg/000000.json"])["nfe"] == 2 * STEPS


def test_the_scheduler_of_stock_stable_diffusion_with_a_plan_of_the_paper(home):
    """PNDM calls the network once more than it has steps; each call follows the plan of its step."""
    model = {"source": "model", "scheduler": "PNDMScheduler", "scheduler_options": {"skip_prk_steps": True}}
    methods = [METHODS[0], {"name": "THG", "policy": "thg", "coarse": [0, 1, 3], "cutoff": 5}]
    quietly(config_in(home, model=model, methods=methods, count=2), home / "pndm")
    nfe = {name: json.loads(records(home / "pndm")[f"{name}/000000.json"])["nfe"] for name in ("cfg", "thg")}
    assert nfe == {"cfg": 2 * (STEPS + 1), "thg": STEPS + 1 + 4}


def test_a_method_with_a_scheduler_of_its_own_is_the_model_with_that_scheduler(home, whole):
    euler = {"scheduler": "EulerDiscreteScheduler", "scheduler_options": {"timestep_spacing": "trailing"}}
    methods = [METHODS[0], {**METHODS[0], "name": "Euler", "steps": 4, **euler}, METHODS[2]]
    mixed = config_in(home, methods=methods, reference="Euler", count=2)
    model = {**config_in(home).source["model"], **euler}
    alone = config_in(home, model=model, methods=[{**METHODS[0], "steps": 4}], count=2)
    quietly(mixed, home / "mixed")
    quietly(alone, home / "alone")  # in another store
    ours, theirs = pictures(home / "mixed"), pictures(home / "alone")
    assert ours["euler/000001.png"] == theirs["cfg/000001.png"] != ours["cfg/000001.png"]
    for name in ("cfg/000001.png", "thg-uniform/000001.png"):  # and the others have their own
        assert ours[name] == pictures(whole)[name]
    keys = [run_in(c, home / "mixed").series()[name].key for c, name in ((mixed, "Euler"), (alone, "CFG"))]
    assert keys[0] == keys[1]


def test_stable_diffusion_3_from_disk(home):
    stable_diffusion_3().save_pretrained(home / "flow")
    model = {"source": str(home / "flow"), "leave_out": ["text_encoder_3", "tokenizer_3"]}
    quietly(config_in(home, model=model, count=2), home / "sd3")
    assert len(pictures(home / "sd3")) == 6


def test_audioldm2_from_disk_makes_sounds(home):
    model = {"source": str(save_sound_model(home)), "call": {"audio_length_in_s": 0.02}}
    config = config_in(home, model=model, count=2, metrics=["psnr", "fad"], references={"folder": "nowhere"})
    path = home / "audio"
    quietly(config, path)
    with wave.open(str(sample_file(path, "thg-uniform/000001.wav"))) as file:
        assert (file.getframerate(), file.getnchannels()) == (16_000, 1)
        assert file.getnframes() == 320
    text = report(config, path)
    assert "| thg uniform | 9 |" in text
    missing = json.loads((path / "metrics.json").read_text())["missing"]
    assert "these are sounds" in missing["psnr"]
    assert "has no package frechet-audio-distance" in missing["fad"]
    assert not (path / "sheet.png").exists()


def test_adaptive_guidance_keeps_the_threshold_that_it_has_found(home):
    methods = [METHODS[0], {"name": "AG", "policy": "adaptive-guidance", "nfe": STEPS + 1}]
    config = config_in(home, methods=methods)
    quietly(config, home / "adaptive")
    found = run_in(config, home / "adaptive").series()["AG"].prepared
    assert found["pilot"] == 16  # of the 20 prompts in the file, though 6 are sampled
    before = pictures(home / "adaptive")
    sample_file(home / "adaptive", "ag/000002.json").unlink()
    quietly(config, home / "adaptive")
    assert pictures(home / "adaptive") == before
    assert run_in(config, home / "adaptive").series()["AG"].prepared == found


# -- time


def test_methods_take_turns_and_another_one_begins_each_batch(home, monkeypatch):
    path, order, made = home / "turns", [], Runner._made

    def noted(self, series, batch):
        order.append(series.method.name)
        return made(self, series, batch)

    monkeypatch.setattr(Runner, "_made", noted)
    quietly(config_in(home), path)
    cfg, cache, uniform = (method["name"] for method in METHODS)
    assert order == [cfg, cache, uniform, cache, uniform, cfg]
    series = run_in(config_in(home), path).series()
    assert len(set(series[cfg].seconds())) == 2
    assert {tuple(each.seconds()) for each in series.values()} == {tuple(series[cfg].seconds())}


def test_the_speed_up_is_that_of_batches_made_in_turns():
    """A machine that becomes twice as slow: a batch that was timed earlier does not count."""
    plain = {"000000-a": 1.0, "000003-a": 1.0, "000000-b": 2.0}
    assert _speedup(plain, {"000000-b": 1.0}) == 2.0
    assert _speedup(plain, {"000000-a": 0.5, "000000-b": 1.0}) == 2.0
    assert _speedup(plain, {"000000-c": 1.0}) is None


# -- bad input


def test_a_folder_of_another_run_is_refused(home, whole):
    with pytest.raises(RunFolderError, match="holds another run"):
        quietly(override(config_in(home), seed=5), whole)


def test_fewer_prompts_than_asked_for_are_an_error_and_nothing_is_written(home):
    with pytest.raises(DataError, match=r"has 20 prompts, 21 were asked for"):
        quietly(config_in(home, count=21), home / "too-many")
    assert not (home / "too-many").exists()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model": {"source": "/nowhere/model"}}, THGError, "the model '/nowhere/model' cannot be loaded"),
        ({"model": {"source": "model", "scheduler": "DDIMSheduler"}}, ConfigError, "did you mean 'DDIMScheduler'"),
        (
            {"model": {"source": "model", "scheduler": "DDIMScheduler", "scheduler_options": {"beta": 1}}},
            ConfigError,
            "DDIMScheduler takes no option 'beta'",
        ),
        (
            {"methods": [METHODS[0], {**METHODS[0], "name": "other", "scheduler": "DDIMSheduler"}]},
            ConfigError,
            "did you mean 'DDIMScheduler'",
        ),
        ({"model": {"source": "model", "call": {"hight": 8}}}, ConfigError, "did you mean 'height'"),
        (
            {"methods": [METHODS[0], {"name": "AG", "policy": "adaptive-guidance", "nfe": 50}]},
            PlanError,
            "method 'AG': nfe=50",
        ),
    ],
)
def test_what_cannot_work_is_an_error_before_the_first_picture(home, changes, error, says):
    with pytest.raises(error, match=says):
        quietly(config_in(home, **changes), home / "wrong")
    assert not (home / "wrong" / "store" / "series").exists()


@pytest.mark.parametrize("written", ["1", "2/2", "a/b", "1/2/3", "-1/2"])
def test_a_shard_that_is_not_one_is_an_error(written):
    with pytest.raises(THGError, match="--shard is written as"):
        find_shard(written, "cpu")


def test_a_shard_is_read(monkeypatch):
    assert find_shard("1/4", "cpu") == Shard(1, 4, "cpu")
    assert find_shard(None, "cpu") == Shard(0, 1, "cpu")
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert find_shard(None, "cpu") == Shard(3, 4, "cpu")


@contextmanager
def files_of_at_most(size):
    """Files of this process may have so many bytes: what a full disk does to a writer."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(tmp_path):
    write_atomically(tmp_path / "file", b"old")
    with files_of_at_most(40), pytest.raises(OSError, match="too large"):
        write_atomically(tmp_path / "file", b"x" * 100)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_disk_that_fills_up_during_a_run_ends_it_with_an_error(home, whole):
    path = home / "full"
    config = config_in(home)
    quietly(config, path)
    sample_file(path, "thg-uniform/000003.json").unlink()
    runner = Runner(run_in(config, path), Shard(), silent)
    with files_of_at_most(60), pytest.raises(OSError, match="too large"):
        runner.run()
    assert not list(path.rglob("*.part"))
    quietly(config, path)
    assert pictures(path) == pictures(whole)


class TrueGuidance(StableDiffusionPipeline):
    """As in Flux and Qwen-Image: `guidance_scale` is an input of the network, and `true_cfg_scale` guides."""

    def __call__(
        self, prompt, num_inference_steps, generator, output_type, guidance_scale=3.5, true_cfg_scale=1.0,
        negative_prompt=None,
    ):  # fmt: skip
        return super().__call__(
            prompt,
            num_inference_steps=num_inference_steps,
            guidance_scale=true_cfg_scale,
            negative_prompt=negative_prompt,
            generator=generator,
            output_type=output_type,
        )


def test_a_pipeline_with_two_scales_is_guided_by_the_one_that_guides():
    plain = load_pipeline(ModelTable(shipped="eps"), "cpu")
    pipe = TrueGuidance(**plain.components, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    prompts, negative = ["a dark coat", "a light bag"], ModelTable(shipped="eps", call={"negative_prompt": " "})
    made = run_pipeline(pipe, ModelTable(shipped="eps"), prompts, range(2), 0, 3, 4.0)
    assert torch.equal(made.values, run_pipeline(plain, negative, prompts, range(2), 0, 3, 4.0).values)
