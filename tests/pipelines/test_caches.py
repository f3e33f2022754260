"""thg together with caches inside the network: the real packages on tiny pipelines, batched and with two calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thg
from tests.pipelines.families import FAMILIES, Broken, Case, Rows
from tests.pipelines.families.video import wan21
from tests.pipelines.programs import CACHES, STEPS, deepcache, package

HALF = thg.tapered(0.5)  # of the whole network
LEAPS = thg.uniform(every=4)  # of the guidance term


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_acts_on_the_evaluated_steps(name: str) -> None:
    make, cache = CACHES[name]
    case = make()
    with cache(case):
        alone = case.run(steps=STEPS)
        thg.enable(case.pipe, HALF)
        together = case.run(steps=STEPS)
        summary = thg.summary(case.pipe)
        assert torch.isfinite(together).all()
        assert summary.evaluations.count(0) == STEPS // 2
        assert name.split(",")[0].replace("TaylorSeerCache", "TaylorSeer") in summary.caches
        assert torch.equal(case.run(steps=STEPS), together), "nothing is left in the cache"
        with Rows(case, stop_at=3), pytest.raises(Broken):
            case.run(steps=STEPS)
        assert torch.equal(case.run(steps=STEPS), together)
        thg.disable(case.pipe)
        assert torch.equal(case.run(steps=STEPS), alone)


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("name", CACHES)
def test_a_plan_of_the_guidance_term_leaves_a_cache_alone(name: str) -> None:
    make, cache = CACHES[name]
    case = make()
    with cache(case):
        alone = case.run(steps=STEPS)
        with thg.enabled(case.pipe, LEAPS):
            assert torch.equal(case.run(steps=STEPS), alone)
            summary = thg.summary(case.pipe)
            assert f"{summary.caches[0]} is inside its network" in summary.note
            assert summary.saved == 0
            thg.enable(case.pipe, thg.uniform(every=1))
            assert torch.equal(case.run(steps=STEPS), alone)
            assert thg.summary(case.pipe).note == ""
    with thg.enabled(case.pipe, LEAPS):
        case.run(steps=STEPS)
        assert thg.summary(case.pipe).nfe == STEPS + STEPS // 4


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
