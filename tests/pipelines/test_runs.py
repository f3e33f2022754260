"""A run has an owner, a start and an end: what is held during it, who may begin one, and calls that belong to none."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import weakref
from typing import ClassVar

import diffusers
import pytest
import torch

import thg
from tests.pipelines.families import FAMILIES, Broken, Rows
from tests.pipelines.families.stable_diffusion import sd15

LEAP = thg.uniform(every=2)


def tensors() -> dict[int, torch.Tensor]:
    """All tensors there are, but for single numbers."""
    gc.collect()
    return {id(value): value for value in gc.get_objects() if isinstance(value, torch.Tensor) and value.numel() > 1}


# -- the end of a run


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "DPMSolverMultistepScheduler", "DDPMScheduler"])
@pytest.mark.parametrize("stop_at", [None, 4])
@pytest.mark.parametrize("plan", [None, LEAP], ids=["default", "leap"])
def test_no_tensor_is_held_after_a_run(scheduler, stop_at, plan):
    case = sd15()
    case.pipe.scheduler = getattr(diffusers, scheduler).from_config(case.pipe.scheduler.config)
    case.run()
    thg.enable(case.pipe, plan)

    def run():
        if stop_at is None:
            case.run()
            return
        with pytest.raises(Broken), Rows(case, stop_at=stop_at):
            case.run()

    before = tensors()  # of other tests, too
    with pytest.raises(Broken), Rows(case, stop_at=3):
        case.run()
    run()
    latents = (1, 4, 8, 8)
    held = [t for key, t in tensors().items() if key not in before and tuple(t.shape) == latents]
    of_scheduler = [t for t in vars(case.pipe.scheduler).get("model_outputs", []) if t is not None]
    assert len(held) <= len(of_scheduler) + (getattr(case.pipe.scheduler, "last_sample", None) is not None)
    assert thg.summary(case.pipe).finished == (stop_at is None)


@pytest.mark.parametrize("plan", [None, LEAP], ids=["default", "leap"])
def test_a_copy_of_the_scheduler_outlives_the_run(plan):
    """It was made within the run, as some pipelines do in each call, and is a plain scheduler afterwards."""
    case, copies = sd15(), []

    def copied(pipe, step, time, tensors):
        copies.append(copy.deepcopy(pipe.scheduler))
        return tensors

    with thg.enabled(case.pipe, plan):
        case.run(callback_on_step_end=copied)
    made, state = copies[0], torch.ones(1, 4, 8, 8)
    expected = case.pipe.scheduler.step(0.5 * state, made.timesteps[1], state).prev_sample
    assert torch.equal(made.step(0.5 * state, made.timesteps[1], state).prev_sample, expected)


def test_an_error_within_the_network_is_not_hidden():
    """A network that fails in its first leap may not support leaps; later ones are errors of its own."""
    case, calls = sd15(), []

    def fail(network, args, kwargs):
        calls.append(len(args[0]))
        if calls == [2, 1, 2, 1]:
            raise RuntimeError("of its own")

    thg.enable(case.pipe, LEAP)
    with case.pipe.unet.register_forward_pre_hook(fail, with_kwargs=True), pytest.raises(RuntimeError, match="own"):
        case.run()
    assert not thg.summary(case.pipe).finished


def test_a_forgotten_pipeline_is_collected_with_its_networks():
    case = sd15()
    thg.enable(case.pipe)
    case.run()
    gone = [weakref.ref(case.pipe), weakref.ref(case.pipe.unet), weakref.ref(case.pipe.unet.conv_in.weight)]
    del case
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_a_network_that_outlives_its_pipeline_is_given_back():
    case = sd15()
    network = case.pipe.unet
    thg.enable(case.pipe, LEAP)
    assert type(network) is not diffusers.UNet2DConditionModel
    case.run()
    del case
    gc.collect()
    assert type(network) is diffusers.UNet2DConditionModel


# -- the class of an enabled pipeline


def test_an_enabled_pipeline_keeps_its_name_and_signature():
    case = sd15()
    before = inspect.signature(case.pipe.__call__)
    thg.enable(case.pipe, LEAP)
    assert isinstance(case.pipe, diffusers.StableDiffusionPipeline)
    assert type(case.pipe).__name__ == "StableDiffusionPipeline"
    assert inspect.signature(case.pipe.__call__) == before
    made = type(case.pipe)(**case.pipe.components, requires_safety_checker=False)
    assert type(made) is diffusers.StableDiffusionPipeline


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_is_plain_and_can_be_enabled(duplicate):
    case = sd15()
    plain = case.run()
    thg.enable(case.pipe, LEAP)
    leap = case.run()
    case.pipe = duplicate(case.pipe)
    assert type(case.pipe) is diffusers.StableDiffusionPipeline
    assert type(case.pipe.unet) is diffusers.UNet2DConditionModel
    assert torch.equal(case.run(), plain)
    thg.enable(case.pipe, LEAP)
    assert torch.equal(case.run(), leap)


def test_a_class_put_on_top_is_named_by_disable():
    case = sd15()
    plain = case.run()
    thg.enable(case.pipe, LEAP)
    network, below = case.pipe.unet, type(case.pipe.unet)
    network.__class__ = type("Sharded", (below,), {})
    case.run()
    with pytest.raises(thg.THGError, match=r"Sharded was put on top .* undo what came after"):
        thg.disable(case.pipe)
    assert torch.equal(case.run(), plain)
    thg.disable(case.pipe)
    assert diffusers.UNet2DConditionModel not in {below: "Sharded"}  # fully_shard remembers its classes like this


# -- threads


def in_thread(work):
    """What a function returns or raises in another thread."""
    result = []

    def target():
        try:
            result.append(work())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    return result[0]


def test_a_second_thread_is_refused_and_the_first_run_is_unharmed():
    case = sd15()
    case.pipe.scheduler = diffusers.DPMSolverMultistepScheduler.from_config(case.pipe.scheduler.config)
    thg.enable(case.pipe, LEAP)
    before = case.run()
    second = []

    def try_meanwhile(pipe, step, time, tensors):
        if step == 2:
            second.append(in_thread(lambda: case.run(seeds=(5,), steps=9)))
        return tensors

    assert torch.equal(case.run(callback_on_step_end=try_meanwhile), before)
    assert isinstance(second[0], thg.errors.ConcurrentRunError)
    assert "deepcopy(pipe.scheduler)" in str(second[0])
    assert thg.summary(case.pipe).finished
    assert torch.equal(case.run(), before)


def test_one_thread_after_another_is_fine_even_after_an_interruption():
    case = sd15()
    thg.enable(case.pipe, LEAP)
    before = case.run()
    with pytest.raises(Broken), Rows(case, stop_at=4):
        case.run()
    assert torch.equal(in_thread(case.run), before)


@pytest.mark.parametrize("family", ["SD 1.5", "Wan 2.1"])
def test_two_pipelines_that_share_all_networks_run_in_two_threads(family):
    runs, samples = 50, 5
    first = FAMILIES[family]()
    second = FAMILIES[family]()
    components = {**first.pipe.components, "scheduler": copy.deepcopy(first.pipe.scheduler)}
    extra = {"requires_safety_checker": False} if family == "SD 1.5" else {}
    second.pipe = type(first.pipe)(**components, **extra)
    second.pipe.set_progress_bar_config(disable=True)
    thg.enable(first.pipe, LEAP)
    thg.enable(second.pipe, thg.uniform(every=3))
    alone = [[case.run(seeds=(seed,), steps=3) for seed in range(samples)] for case in (first, second)]
    wrong: list[object] = []

    def work(case, expected):
        try:
            for i in range(runs):
                if not torch.equal(case.run(seeds=(i % samples,), steps=3), expected[i % samples]):
                    wrong.append(i)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip((first, second), alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_network_is_enabled_in_one_thread_while_it_is_restored_in_another():
    class Slow(diffusers.UNet2DConditionModel):
        """While its class is restored, another thread gets the time to enable it, if it may."""

        meanwhile: ClassVar[list[threading.Thread]] = []

        def __setattr__(self, name, value):
            while name == "__class__" and self.meanwhile:
                thread = self.meanwhile.pop()
                thread.start()
                thread.join(timeout=0.5)
            super().__setattr__(name, value)

    first, second = sd15(), sd15()
    first.pipe.unet = second.pipe.unet = network = Slow.from_config(first.pipe.unet.config)
    thg.enable(first.pipe)
    other = threading.Thread(target=lambda: thg.enable(second.pipe))
    Slow.meanwhile.append(other)
    thg.disable(first.pipe)
    other.join()
    assert type(network) is not Slow
    thg.disable(second.pipe)
    assert type(network) is Slow


def test_calls_from_another_thread_are_reported():
    case = sd15()
    plain = case.run()
    network = case.pipe.unet
    thg.enable(case.pipe, LEAP)

    def look(pipe, step, time, tensors):
        in_thread(lambda: network(torch.zeros(1, 4, 8, 8), 1, encoder_hidden_states=torch.zeros(1, 5, 16)))
        return tensors

    case.run(callback_on_step_end=look)
    assert "6 network calls came from another thread" in thg.summary(case.pipe).note
    case.run()
    assert thg.summary(case.pipe).note == ""
    thg.disable(case.pipe)
    assert torch.equal(case.run(), plain)


# -- sections


def test_sections_of_one_call_are_one_run():
    class InSections(diffusers.StableDiffusionPipeline):
        """Sets its time steps twice, as video pipelines do for each stretch of frames."""

        @torch.no_grad()
        def __call__(self, embeds, steps):
            self._guidance_scale = 5.0
            result = []
            for seed in range(2):
                self.scheduler.set_timesteps(steps + seed)
                x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed))
                for t in self.scheduler.timesteps:
                    e_u, e_c = self.unet(torch.cat([x, x]), t, encoder_hidden_states=embeds).sample.chunk(2)
                    x = self.scheduler.step(e_u + 5.0 * (e_c - e_u), t, x).prev_sample
                result.append(x)
            return torch.stack(result)

    case = sd15()
    pipe = InSections(**case.pipe.components, requires_safety_checker=False)
    pipe._guidance_rescale, pipe._cross_attention_kwargs = 0.0, None
    embeds = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    plain = pipe(embeds, 6)
    thg.enable(pipe, LEAP, layout=thg.Batched())
    leap = pipe(embeds, 6)
    report = thg.summary(pipe)
    assert (report.steps, report.nfe, report.cfg_nfe, report.sections) == (13, 9 + 11, 26, 2)
    assert report.finished
    assert report.plan.steps == 7
    assert torch.equal(pipe(embeds, 6), leap)
    assert 0 < float((leap - plain).norm() / plain.norm()) < 0.5


def test_how_much_takes_part_in_a_default_run():
    """The classes with objects that the run keeps, and the calls from one module to another in each step."""
    case = sd15()
    case.pipe.scheduler = diffusers.DPMSolverMultistepScheduler.from_config(case.pipe.scheduler.config)
    thg.disable(thg.enable(case.pipe))  # now the tables are loaded
    before = gc.get_objects()
    known = set(map(id, before))
    thg.enable(case.pipe)
    classes: set[type] = set()
    calls = [0]

    def look(pipe, step, time, tensors):
        new = [value for value in gc.get_objects() if id(value) not in known and not isinstance(value, type)]
        classes.update(type(value) for value in new if str(type(value).__module__).startswith("thg."))
        return {}

    def count(frame, event, argument):
        if event == "call" and frame.f_back is not None and not frame.f_code.co_name.startswith("__"):
            here, there = (str(one.f_globals.get("__name__")) for one in (frame, frame.f_back))
            calls[-1] += here.startswith("thg.") and here != there

    def next_step(pipe, step, time, tensors):
        calls.append(0)
        return {}

    case.run(steps=20, callback_on_step_end=look)
    sys.setprofile(count)
    try:
        case.run(steps=20, callback_on_step_end=next_step)
    finally:
        sys.setprofile(None)
    assert 0 in thg.summary(case.pipe).evaluations
    assert 8 <= len(classes) <= 12, sorted(kind.__name__ for kind in classes)
    assert 4 <= max(calls[1:-2]) <= 12, calls
