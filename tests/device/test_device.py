"""On an accelerator: no operation mixes devices, the numbers are those of the CPU, and the host hardly ever waits."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

import thg
from tests.device.accelerator import NAME, ToyTensor, counted_waits
from tests.pipelines.families import FAMILIES, Case
from tests.pipelines.families.pictures import sd3
from tests.pipelines.families.stable_diffusion import sd15
from thg.ode.schedulers import SCHEDULERS

PACKAGE = Path(thg.__file__).parent
MOST_WAITS = 1  # of thg in a run
STEPS = 6
LEAPS = thg.within(0.2)  # the default planner with a tolerance that leaves leaps at few steps
PRECISIONS = [torch.float32, torch.bfloat16]

torch.set_num_threads(1)


def moved(value: Any, dtype: torch.dtype, device: str) -> Any:
    """The arguments of a call on a device, in a precision."""
    if isinstance(value, Tensor):
        return value.to(device, dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, list | tuple):
        return type(value)(moved(item, dtype, device) for item in value)
    if isinstance(value, dict):
        return {name: moved(item, dtype, device) for name, item in value.items()}
    return value


def on(device: str, case: Case, dtype: torch.dtype) -> Case:
    """The case on a device, in a precision."""
    case.pipe.to(dtype)
    case.pipe.to(device)
    inputs, switch = case.inputs, case.switch
    case.inputs = lambda prompts: moved(inputs(prompts), dtype, device)
    case.switch = lambda guided: moved(switch(guided), dtype, device)
    return case


def run(case: Case, steps: int) -> tuple[Tensor, Counter[str]]:
    with counted_waits() as waits:
        output = case.run(steps=steps)
        seen = Counter(waits)
    return output.host if isinstance(output, ToyTensor) else output, seen


def check(case: Case, plan: Any, steps: int = STEPS, most: int = MOST_WAITS) -> Tensor:
    thg.disable(case.pipe)
    _, plain = run(case, steps)
    thg.enable(case.pipe, plan)
    output, waits = run(case, steps)
    own = {line: count for line, count in waits.items() if Path(line).is_relative_to(PACKAGE)}
    assert sum(own.values()) <= most, own
    assert sum(waits.values()) - sum(plain.values()) <= most, waits - plain
    assert output.isfinite().all()
    summary = thg.summary(case.pipe)
    assert summary.finished
    assert summary.nfe < summary.cfg_nfe or "everything was evaluated" in summary.note
    return output


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family, dtype):
    steps = 3 * STEPS if family == "SD img2img, strength 0.35" else STEPS
    check(on(NAME, FAMILIES[family](), dtype), LEAPS, steps)


@pytest.mark.parametrize(
    "family", ["SD 1.5", "SD ControlNet", "SD3", "Flux with true CFG", "Z-Image", "DiT", "Wan 2.1"]
)
def test_plans_of_the_guidance_term(family):
    """The check of the layout is one more wait."""
    case = on(NAME, FAMILIES[family](), torch.float32)
    check(case, thg.uniform(every=2), most=MOST_WAITS + 1)
    assert thg.summary(case.pipe).checked
    assert thg.summary(case.pipe).note == ""


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("family", ["SD 1.5", "SD3", "Flux with true CFG", "Wan 2.1"])
def test_the_default_plan_has_the_numbers_of_the_cpu(family, dtype):
    found = check(on(NAME, FAMILIES[family](), dtype), None, steps=20)
    reference = on("cpu", FAMILIES[family](), dtype)
    thg.enable(reference.pipe)
    expected, _ = run(reference, 20)
    tolerance = 1e-3 if dtype == torch.float32 else 0.5  # attention is computed in another order
    assert float((found.float() - expected.float()).norm() / expected.float().norm()) < tolerance


def with_scheduler(name: str) -> Case:
    case = sd3() if SCHEDULERS[name].predicts == ("flow",) else sd15()
    options = {"skip_prk_steps": True} if name == "PNDMScheduler" else {}
    case.pipe.scheduler = getattr(diffusers, name).from_config(case.pipe.scheduler.config, **options)
    return case


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("name", [row.name for row in SCHEDULERS.values() if row.option])
def test_every_scheduler(name, dtype):
    check(on(NAME, with_scheduler(name), dtype), LEAPS)


def test_the_number_of_steps_does_not_matter():
    case = on(NAME, sd15(), torch.float32)
    counts = []
    for steps in (6, 24):
        thg.disable(case.pipe)
        with counted_waits() as waits:
            case.run(steps=steps)
            plain = sum(waits.values())
        thg.enable(case.pipe, LEAPS)
        with counted_waits() as waits:
            case.run(steps=steps)
            counts.append(sum(waits.values()) - plain)
    assert counts[0] == counts[1] <= MOST_WAITS


def test_the_device_refuses_what_an_accelerator_refuses():
    """So that a pass of the other tests means something."""
    here, there = torch.ones(3), torch.ones(3).to(NAME)
    with pytest.raises(RuntimeError, match=f"{NAME}:0 and of the CPU"):
        here + there
    assert torch.equal((there + torch.tensor(1.0)).host, torch.full((3,), 2.0))
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    with counted_waits() as waits:
        there + there
        assert not waits
        for wait in (there[0].item, lambda: float(there[0]), lambda: bool(there[0]), there.cpu, there.tolist):
            before = sum(waits.values())
            wait()
            assert sum(waits.values()) == before + 1
    assert isinstance(copy.deepcopy(there), ToyTensor)
