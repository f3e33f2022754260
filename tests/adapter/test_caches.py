"""thg together with caches inside the network: the real packages on tiny pipelines, batched and with two calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import thg
from tests.adapter.families import FAMILIES, Broken, Case, Rows
from tests.adapter.families.video import cogvideox, wan21
from tests.adapter.programs import (
    CACHES,
    FASTER,
    LAYERS,
    STEPS,
    cache_dit,
    counted,
    deepcache,
    package,
)
from thg.adapter.caches.deepcache import _extrapolated

LEAPS = thg.uniform(every=4)


class Subject:
    """A pipeline with its cache, and what several tests look at."""

    def __init__(self, name: str) -> None:
        make, self.cache = CACHES[name]
        self.case = make()
        self.name = name.split(",")[0].replace("TaylorSeerCache", "TaylorSeer")
        with thg.enabled(self.case.pipe, LEAPS), counted(self.case) as work_of_thg:
            self.thg_alone = self.run()
        with self.cache(self.case):
            self.alone = self.run()
            with thg.enabled(self.case.pipe, LEAPS), counted(self.case) as work:
                self.together = self.run()
                self.report = thg.summary(self.case.pipe)
        self.work_left = work[0] / work_of_thg[0]

    def run(self) -> Tensor:
        return self.case.run(steps=STEPS)


@pytest.fixture(scope="module", params=CACHES)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param)


def test_without_leaps_the_cache_is_what_it_is_alone(subject: Subject) -> None:
    with subject.cache(subject.case), thg.enabled(subject.case.pipe, thg.uniform(every=1)):
        assert torch.equal(subject.run(), subject.alone)


def test_together_both_save_and_the_report_names_the_cache(subject: Subject) -> None:
    assert torch.isfinite(subject.together).all()
    assert subject.report.nfe == STEPS + STEPS // 4
    assert subject.report.caches == (subject.name,)
    assert f"with {subject.name} inside the network" in str(subject.report)
    assert subject.work_left < 0.95, "the cache saved nothing"


def test_in_any_order_of_enabling_and_disabling(subject: Subject) -> None:
    thg.enable(subject.case.pipe, LEAPS)
    with subject.cache(subject.case):
        assert torch.equal(subject.run(), subject.together)
        thg.disable(subject.case.pipe)
        assert torch.equal(subject.run(), subject.alone)
        thg.enable(subject.case.pipe, LEAPS)
        assert torch.equal(subject.run(), subject.together)
    assert torch.equal(subject.run(), subject.thg_alone)
    thg.disable(subject.case.pipe)
    with subject.cache(subject.case):
        thg.enable(subject.case.pipe, LEAPS)
    assert torch.equal(subject.run(), subject.thg_alone)
    thg.disable(subject.case.pipe)


@pytest.mark.parametrize("interrupted", [thg.uniform(every=1), LEAPS])
def test_an_interrupted_run_leaves_nothing_behind(subject: Subject, interrupted: Any) -> None:
    with subject.cache(subject.case):
        with thg.enabled(subject.case.pipe, interrupted), Rows(subject.case, stop_at=4), pytest.raises(Broken):
            subject.run()
        with thg.enabled(subject.case.pipe, LEAPS):
            assert torch.equal(subject.run(), subject.together)
        assert torch.equal(subject.run(), subject.alone)


def test_the_first_run_follows_the_plan_as_the_later_ones_do(subject: Subject) -> None:
    """`together` was the first run of its pipeline with both."""
    assert subject.report.evaluations == (2, 1, 1, 1, 2, 1, 1, 1)
    with subject.cache(subject.case), thg.enabled(subject.case.pipe, LEAPS):
        assert torch.equal(subject.run(), subject.together)
        assert thg.summary(subject.case.pipe).evaluations == subject.report.evaluations


@pytest.mark.parametrize(("name", "idle"), [("SD 1.5", {"interval": 1}), ("SD3", {"threshold": 0.0})])
def test_a_cache_that_reuses_nothing_is_thg_alone(name: str, idle: dict[str, Any]) -> None:
    case = FAMILIES[name]()
    program = deepcache if name == "SD 1.5" else cache_dit
    with thg.enabled(case.pipe, LEAPS):
        alone = case.run(prompts=(0, 1), seeds=(0, 1), steps=STEPS)
        with program(case, **idle):
            together = case.run(prompts=(0, 1), seeds=(0, 1), steps=STEPS)
    torch.testing.assert_close(together, alone, rtol=1e-2, atol=1e-3)


def test_a_batch_is_its_rows() -> None:
    case = FAMILIES["SD 1.5"]()
    with deepcache(case), thg.enabled(case.pipe, LEAPS):
        batch = case.run(prompts=(0, 1), seeds=(0, 1), steps=STEPS)
        second = case.run(prompts=(1,), seeds=(1,), steps=STEPS)
    torch.testing.assert_close(batch[1:], second, rtol=1e-3, atol=1e-4)


# -- rules


def test_where_the_hare_is_evaluated_everything_is_computed() -> None:
    case, full = FAMILIES["SD 1.5"](), []
    with deepcache(case, interval=100), thg.enabled(case.pipe, LEAPS):
        step = case.pipe.unet.mid_block.resnets[0].register_forward_hook(
            lambda _m, args, _out: full.append(len(args[0]))
        )
        case.run(steps=STEPS)
        step.remove()
    assert full == [1, 1] * (STEPS // 4), "each evaluation is one full pass for each branch, and there are no others"


def test_features_are_continued_along_a_line() -> None:
    """Outputs of a layer may be nested: a down block returns its hidden states and a tuple of residuals."""
    positions = (3, 6)
    known = tuple((torch.tensor([1.0 + 2 * x]), (torch.tensor([float(x)]), None)) for x in positions)
    assert _extrapolated(positions, known, 8, order=2) == (torch.tensor([17.0]), (torch.tensor([8.0]), None))
    assert _extrapolated(positions, known, 8, order=1) == (torch.tensor([13.0]), (torch.tensor([6.0]), None))


def test_a_count_of_calls_is_not_lost() -> None:
    """cache-dit tells the branches of Wan by the parity of its calls."""
    case = wan21(layers=LAYERS)
    with cache_dit(case), thg.enabled(case.pipe, LEAPS):
        (context,) = _contexts_after(case)
        assert context.executed_steps == STEPS
        assert context.cfg_cached_steps == []
        assert max(context.cached_steps) <= STEPS - 1


def _contexts_after(case: Case) -> list[Any]:
    seen: list[Any] = []

    def look(pipe: Any, step: int, time: Any, values: dict[str, Any]) -> dict[str, Any]:
        seen[:] = list(case.pipe._context_manager._cached_context_manager.values())
        return values

    case.run(steps=STEPS, callback_on_step_end=look)
    return seen


# -- what does not go together


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
def test_fastercache_is_refused_by_name() -> None:
    case = cogvideox(layers=LAYERS)
    with FASTER(case), thg.enabled(case.pipe, LEAPS):
        case.run(steps=STEPS)
        assert "FasterCache skips unconditional passes itself" in thg.summary(case.pipe).note
        thg.enable(case.pipe, thg.uniform(every=1))
        case.run(steps=STEPS)


def test_replaced_layers_do_not_matter() -> None:
    """Some implementations of LoRA replace the forward methods of layers."""
    case = wan21()
    layer = case.pipe.transformer.blocks[0].ffn.net[2]
    plain = layer.forward
    layer.forward = lambda states: 1.1 * plain(states)
    with thg.enabled(case.pipe, LEAPS):
        case.run(steps=STEPS)
        assert thg.summary(case.pipe).nfe == STEPS + STEPS // 4


def test_calibration_wants_the_network_without_a_cache() -> None:
    pipe: Any = thg.shipped_pipeline()
    pipe.set_progress_bar_config(disable=True)
    case = Case(pipe, lambda prompts: {})
    with deepcache(case), pytest.raises(thg.THGError, match="DeepCache"):
        thg.calibrate(pipe, ["a dark ankle boot"], steps=4)


# -- other hooks


def test_tomesd() -> None:
    tomesd = package("tomesd")
    pipe: Any = thg.shipped_pipeline()
    pipe.set_progress_bar_config(disable=True)
    tomesd.apply_patch(pipe, ratio=0.5, use_rand=False)

    def run() -> Any:
        generator = torch.Generator().manual_seed(0)
        return pipe("a dark ankle boot", num_inference_steps=6, generator=generator, output_type="np").images

    merged = run()
    with thg.enabled(pipe, thg.uniform(every=1)):
        assert (run() == merged).all()
    with thg.enabled(pipe, thg.uniform(every=2)):
        assert abs(run() - merged).mean() < 0.1
        assert thg.summary(pipe).nfe == 9
    tomesd.remove_patch(pipe)


@pytest.mark.parametrize("first", ["thg", "hook"])
@pytest.mark.parametrize(
    ("hook", "name"),
    [("compile", "Wan 2.1"), ("casting", "SD 1.5"), ("casting", "Wan 2.1"), ("offloading", "SD 1.5")],
)
def test_hooks_of_other_kinds(hook: str, name: str, first: str) -> None:
    case = FAMILIES[name]()
    network: Any = getattr(case.pipe, case.networks[0])
    plain = FAMILIES[name]()
    _apply(hook, getattr(plain.pipe, plain.networks[0]))
    alone = plain.run()
    if first == "hook":
        _apply(hook, network)
    thg.enable(case.pipe, thg.uniform(every=1))
    if first == "thg":
        _apply(hook, network)
    assert torch.equal(case.run(), alone)
    thg.enable(case.pipe, thg.uniform(every=2))
    thg.enable(plain.pipe, thg.uniform(every=2))
    assert torch.equal(case.run(), plain.run())
    assert thg.summary(case.pipe).caches == ()
    thg.disable(case.pipe)
    assert torch.equal(case.run(), alone)


def _apply(hook: str, network: Any) -> None:
    if hook == "compile":
        network.compile(backend="eager")
    elif hook == "casting":
        network.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    else:
        network.enable_group_offload(
            onload_device=torch.device("cpu"), offload_device=torch.device("cpu"), offload_type="leaf_level"
        )
