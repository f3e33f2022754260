"""Calibration on real (tiny) pipelines: what it measures, and that nothing but the samples has a say in it."""

import json
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
)

import thg
from tests import forked
from tests.calibrate.conftest import SCALE, STEPS
from tests.calibrate.pipelines import PROMPTS, stable_diffusion, stable_diffusion_3
from thg.ode.integrate import sample
from thg.ode.richardson import error_constants, error_constants_first_order
from thg.ode.schedulers import read_schedule
from thg.ode.solvers import ddim, lms
from thg.processes import Process, generators, sample_seed
from thg.profiles.planner import output_weight

QUICK = {"steps": STEPS, "guidance_scale": SCALE, "sensitivity": 0, "progress": False}
PAPER = {**QUICK, "algorithm3": True}


def denoiser_of(pipe, prompt):
    """The pipeline's own network, as the core takes it."""
    conditional, unconditional = pipe.encode_prompt(prompt, "cpu", 1, True)

    def denoiser(x, t, wanted, /):
        with torch.no_grad():
            return pipe.unet(x, t, encoder_hidden_states=conditional if wanted else unconditional).sample

    return denoiser


def initial_noise(pipe, index):
    generator = torch.Generator().manual_seed(sample_seed(0, index))
    return torch.randn(1, 4, 8, 8, generator=generator) * pipe.scheduler.init_noise_sigma


# -- what is measured


@pytest.mark.parametrize("scheduler", [None, EulerDiscreteScheduler])
@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_the_short_form_is_algorithm_3(scheduler, prediction_type):
    """Norms at the midpoint, times the solver's factor, are the error constants of the core's general form."""
    pipe = stable_diffusion(prediction_type=prediction_type)
    if scheduler is not None:
        pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
    profile = thg.calibrate(pipe, PROMPTS[:1], batch_size=1, **PAPER)
    pipe.scheduler.set_timesteps(STEPS)
    schedule = read_schedule(pipe.scheduler)
    arguments = (denoiser_of(pipe, PROMPTS[0]), initial_noise(pipe, 0), schedule)
    long = error_constants(*arguments, ddim(), guidance_scale=SCALE)
    short = error_constants_first_order(*arguments, guidance_scale=SCALE)
    ours = (SCALE - 1) * profile.constants.hare.mean / profile.constants.tortoise.mean
    np.testing.assert_allclose(ours, (long.hare / long.tortoise)[:-1, 0], rtol=2e-2)
    np.testing.assert_allclose(ours, (short.hare / short.tortoise)[:-1, 0], rtol=2e-2)
    factor = [
        output_weight("epsilon", m, e) for m, e in zip(profile.constants.middle, profile.noise[1:-1], strict=True)
    ]
    if scheduler is None:  # the state of Euler is another one, by a factor
        np.testing.assert_allclose(np.abs(factor) * profile.constants.tortoise.mean, short.tortoise[:-1, 0], rtol=2e-2)


def test_a_second_order_solver_is_judged_by_second_differences():
    pipe = stable_diffusion(DPMSolverMultistepScheduler.from_config(stable_diffusion().scheduler.config))
    profile = thg.calibrate(pipe, PROMPTS[:1], batch_size=1, **{**PAPER, "steps": 16})
    assert profile.about.order == 2
    pipe.scheduler.set_timesteps(16)
    schedule = read_schedule(pipe.scheduler)
    general = error_constants(
        denoiser_of(pipe, PROMPTS[0]), initial_noise(pipe, 0), schedule, lms(2), guidance_scale=SCALE
    )
    ours = (SCALE - 1) * profile.constants.hare.mean / profile.constants.tortoise.mean
    theirs = (general.hare / general.tortoise)[:-1, 0]
    assert np.median(np.abs(np.log(ours[2:] / theirs[2:]))) < np.log(1.6)


def test_the_gram_matrix_is_that_of_the_outputs_of_plain_cfg(profile):
    pipe = stable_diffusion()
    pipe.scheduler.set_timesteps(STEPS)
    schedule = read_schedule(pipe.scheduler)
    network = denoiser_of(pipe, PROMPTS[0])
    x, terms = initial_noise(pipe, 0), []

    def recording(x, t, conditional, /):
        output = network(x, t, conditional)
        terms.append(output)
        return output

    sample(recording, x, thg.Plan(STEPS, range(STEPS)), schedule, ddim(), guidance_scale=SCALE, check=False)
    outputs = [u + SCALE * (c - u) for c, u in zip(terms[::2], terms[1::2], strict=True)]
    d = torch.stack(outputs).flatten(1).double()
    single = thg.calibrate(stable_diffusion(), PROMPTS[:1], batch_size=1, **QUICK)
    np.testing.assert_allclose(single.gram, (d @ d.T).numpy(), rtol=1e-4)
    assert profile.samples == 3


def test_the_run_under_calibration_is_plain_cfg():
    """Recording changes nothing: the same latents as without, and the pipeline is as before."""
    pipe = stable_diffusion_3()
    arguments = {"prompt": PROMPTS[:2], "num_inference_steps": 4, "guidance_scale": 3.0, "output_type": "latent"}
    seeds = [sample_seed(0, i) for i in range(2)]

    def latents():
        return pipe(generator=[torch.Generator().manual_seed(s) for s in seeds], **arguments).images

    before = latents()
    kept = dict(pipe._progress_bar_config)
    profile = thg.calibrate(pipe, PROMPTS[:2], steps=4, guidance_scale=3.0, batch_size=2, sensitivity=0, progress=False)
    assert torch.equal(latents(), before)
    assert pipe._progress_bar_config == kept
    assert profile.about.prediction == "flow"
    assert profile.noise[0] == 1.0


def test_what_survives_is_one_at_the_end_and_may_be_left_out(profile):
    assert profile.survival[-1] == pytest.approx(1.0, rel=1e-3)
    assert profile.anchors == (1, 4, STEPS - 2)
    assert thg.calibrate(stable_diffusion(), PROMPTS[:1], **QUICK).survival is None


def test_what_survives_is_that_of_the_same_run_with_an_error_in_one_output():
    """The first sample makes its error at the first anchor: the pipeline's own loop, with that output replaced."""
    pipe, arguments = stable_diffusion(), {**QUICK, "sensitivity": 1}
    profile = thg.calibrate(pipe, PROMPTS[:3], batch_size=2, **arguments)
    original, outputs, states = pipe.scheduler.step, [], []

    def run(error):
        outputs.clear()

        def step(output, time, sample, **more):
            outputs.append(output + error if len(outputs) == 1 else output)
            states.append(sample)
            return original(outputs[-1], time, sample, **more)

        pipe.scheduler.step = step
        pipe(PROMPTS[0], generator=generators(0, [0]), num_inference_steps=STEPS, guidance_scale=SCALE)
        return states[-1], list(outputs)

    plain, made = run(0.0)
    bend = made[2] - 2 * made[1] + made[0]
    moved = run(bend / bend.norm() * (made[1] - made[0]).norm())[0] - plain
    caused = abs(output_weight("epsilon", profile.noise[1], profile.noise[2])) * (made[1] - made[0]).norm()
    assert profile.survival[0] == pytest.approx(float(moved.norm() / caused), rel=1e-3)


def test_it_costs_at_most_two_plain_runs_per_sample():
    pipe, rows = stable_diffusion(), []
    pipe.unet.register_forward_hook(lambda module, args, output: rows.append(len(args[0])))
    thg.calibrate(pipe, PROMPTS, batch_size=2, **{**QUICK, "sensitivity": 1})
    assert len(PROMPTS) * 2 * STEPS < sum(rows) <= len(PROMPTS) * 2 * 2 * STEPS


def test_a_run_without_guidance_is_calibrated_too():
    profile = thg.calibrate(stable_diffusion(), PROMPTS[:1], **{**QUICK, "guidance_scale": 1.0})
    assert profile.planner(nfe=0.5).plan(thg.Run.of(STEPS, 1.0)).evaluations == STEPS // 2
    with pytest.raises(thg.ProfileError, match=r"no error constants, .* algorithm3=True"):
        profile.planner(rho=1.0)


def test_a_pipeline_with_a_layout_of_its_own():
    pipe = type("Mine", (type(stable_diffusion()),), {})(**stable_diffusion().components)
    found = thg.calibrate(pipe, PROMPTS[:1], batch_size=1, layout=thg.Batched(), **{**PAPER, "steps": 4})
    assert found.constants.tortoise.count == 1
    with pytest.raises(thg.ProfileError, match="layout= are for pipelines"):
        thg.calibrate(lambda x, t, c: x, None, x=torch.zeros(1, 2), schedule=thg.Schedule.vp(4), layout=thg.Batched())


def test_the_norm_of_the_state_is_that_before_the_last_step(profile):
    """Of the latents that the pipeline itself shows; DDIM gives them to the network as they are."""
    pipe, seen = stable_diffusion(), []

    def look(pipe, step, time, kwargs):
        seen.append(kwargs["latents"].flatten(1).norm(dim=1))
        return {}

    pipe(
        PROMPTS[:3],
        generator=generators(0, range(3)),
        num_inference_steps=STEPS,
        guidance_scale=SCALE,
        output_type="latent",
        callback_on_step_end=look,
    )
    assert profile.state_norm == pytest.approx(float(seen[-2].square().mean().sqrt()), rel=1e-5)


def test_calls_at_one_time_count_once():
    pipe = stable_diffusion()
    pipe.scheduler = HeunDiscreteScheduler.from_config(pipe.scheduler.config)
    profile = thg.calibrate(pipe, PROMPTS[:1], batch_size=1, **{**QUICK, "steps": 6})
    assert profile.steps == 6
    with thg.enabled(pipe, profile.planner(nfe=0.75)):
        pipe(PROMPTS[0], num_inference_steps=6, guidance_scale=SCALE, output_type="latent")
        assert thg.summary(pipe).nfe < thg.summary(pipe).cfg_nfe


def test_the_plan_of_a_profile_runs(profile):
    pipe = stable_diffusion()
    with thg.enabled(pipe, profile.planner(nfe=0.7)):
        pipe(PROMPTS[0], num_inference_steps=STEPS, guidance_scale=SCALE, output_type="latent")
        assert thg.summary(pipe).nfe == 14
    with (
        pytest.raises(thg.errors.ProfileError, match="measured on the network"),
        thg.enabled(other := stable_diffusion_3(), profile.planner(nfe=0.7)),
    ):
        other(PROMPTS[0], num_inference_steps=STEPS, guidance_scale=SCALE, output_type="latent")


# -- what has no say in it


def test_the_batch_size_does_not_matter(profile):
    other = thg.calibrate(stable_diffusion(), PROMPTS[:3], batch_size=2, **{**PAPER, "sensitivity": 1})
    for name in ("tortoise", "hare", "tortoise_rate", "hare_rate"):
        mine, theirs = (getattr(found.constants, name).mean for found in (profile, other))
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * theirs.max())
    np.testing.assert_allclose(profile.survival, other.survival, rtol=1e-2)
    np.testing.assert_allclose(profile.gram, other.gram, rtol=1e-4, atol=1e-4 * other.gram.max())


def calibrate_into(folder: Path, out: Path) -> None:
    small = {**QUICK, "steps": 4, "sensitivity": 2}
    profile = thg.calibrate(stable_diffusion(), PROMPTS, batch_size=1, folder=folder, **small)
    if Process.current().rank == 0:
        profile.save(out)


def start(home: Path, name: str, **environment: object) -> BaseProcess:
    return forked.start(home, calibrate_into, home / name, home / f"{name}.json", **environment)


def test_killed_and_resumed_it_writes_the_same_bytes_and_two_processes_too(tmp_path):
    cut = start(tmp_path, "cut")
    while len(list((tmp_path / "cut").glob("samples-*"))) < 2:
        assert cut.is_alive(), (tmp_path / "err.txt").read_text()
        time.sleep(0.005)
    os.kill(cut.pid, signal.SIGKILL)
    assert forked.finish(cut) == -signal.SIGKILL
    finished = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cut").glob("samples-*.safetensors")}
    assert finished
    assert not (tmp_path / "cut.json").exists()
    running = [start(tmp_path, "whole"), start(tmp_path, "cut")]  # the second goes on
    running += [start(tmp_path, "two", RANK=rank, WORLD_SIZE=2) for rank in range(2)]  # as launchers start them
    for process in running:
        assert forked.finish(process) == 0, (tmp_path / "err.txt").read_text()
    expected = (tmp_path / "whole.json").read_bytes()
    assert (tmp_path / "cut.json").read_bytes() == expected
    assert (tmp_path / "two.json").read_bytes() == expected
    again = {name: (tmp_path / "cut" / name).stat().st_mtime_ns for name in finished}
    assert again == finished  # nothing was measured twice


# -- bad input


def test_a_folder_of_another_calibration_is_refused(tmp_path):
    pipe = stable_diffusion()
    arguments = {"steps": 3, "guidance_scale": 4.0, "sensitivity": 0, "progress": False}
    thg.calibrate(pipe, PROMPTS[:1], folder=tmp_path / "parts", **arguments)
    with pytest.raises(thg.errors.ProfileError, match=r"with other settings \(seed\)"):
        thg.calibrate(pipe, PROMPTS[:1], folder=tmp_path / "parts", seed=1, **arguments)
    half = stable_diffusion()
    half.unet.to(torch.bfloat16)
    with pytest.raises(thg.errors.ProfileError, match=r"with other settings \(network, precision\)"):
        thg.calibrate(half, PROMPTS[:1], folder=tmp_path / "parts", **arguments)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(thg.errors.ProfileError, match="not empty"):
        thg.calibrate(pipe, PROMPTS[:1], folder=tmp_path / "mine", **arguments)
    shard = next((tmp_path / "parts").glob("samples-*"))
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(thg.errors.ProfileError, match="remove it"):
        thg.calibrate(pipe, PROMPTS[:1], folder=tmp_path / "parts", **arguments)
    assert json.loads((tmp_path / "parts" / "calibration.json").read_text())["settings"]["seed"] == 0


@pytest.mark.parametrize(
    ("prompts", "arguments", "message"),
    [
        ([], {}, "at least one prompt"),
        ("a boot", {}, "at least one prompt"),
        (PROMPTS, {"steps": 1}, "at least 2"),
        (PROMPTS, {"guidance_scale": 1.0, "algorithm3": True}, "must be above 1"),
        (PROMPTS, {"batch_size": 0}, "batch_size must be at least 1"),
        (PROMPTS, {"call": {"colour": "red"}}, "takes no argument 'colour'"),
    ],
)
def test_bad_arguments(prompts, arguments, message):
    with pytest.raises(thg.errors.ProfileError, match=message):
        thg.calibrate(stable_diffusion(), prompts, **arguments)


def test_a_scheduler_that_adds_noise_is_refused():
    pipe = stable_diffusion()
    pipe.scheduler = EulerAncestralDiscreteScheduler.from_config(pipe.scheduler.config)
    with pytest.raises(thg.errors.ScheduleError, match="adds fresh noise at every step"):
        thg.calibrate(pipe, PROMPTS[:1], **QUICK)
