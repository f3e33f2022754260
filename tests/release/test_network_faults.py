"""A network that fails in the middle of a run: NaN, out of memory. On real tiny pipelines."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import thg
from tests.pipelines.families import FAMILIES
from tests.release.commands import refused
from thg.models import shipped_path
from thg.ode.schedulers import read_schedule
from thg.ode.solvers import ddim

LEAP = thg.uniform(every=2)
CORRECTED = thg.uniform(every=2, corrector=0.7)
KINDS = ["SD 1.5", "Wan 2.1"]  # one batched call a step, and two calls


def hooked(case, hook):
    """Has a hook see what goes into the case's network and what comes out of it."""
    return getattr(case.pipe, case.networks[0]).register_forward_hook(hook, with_kwargs=True)


def nan_from(call):
    """A hook: the outputs of this call of the network and of all later ones are NaN."""
    calls = iter(range(1, 10**6))

    def hook(network, args, kwargs, output):
        if next(calls) < call:
            return output
        values = [torch.full_like(value, torch.nan) for value in (output if isinstance(output, tuple) else [output[0]])]
        return tuple(values) if isinstance(output, tuple) else type(output)(*values)

    return hook


# -- NaN


@pytest.mark.parametrize("plan", [LEAP, CORRECTED, thg.uniform(every=1)], ids=["leap", "corrected", "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_is_in_the_summary_and_gone_in_the_next_run(kind, plan):
    case = FAMILIES[kind]()
    thg.enable(case.pipe, plan)
    before = case.run()
    assert thg.summary(case.pipe).finite
    for call in (1, 4, 6):
        with hooked(case, nan_from(call)):
            assert not case.run().isfinite().all()
        report = thg.summary(case.pipe)
        assert not report.finite
        assert report.finished
        assert "NaN or infinity in the last network output" in str(report)
        assert torch.equal(case.run(), before)
        assert thg.summary(case.pipe).finite


def test_nan_in_the_core_is_an_error_that_names_step_and_branch():
    case = FAMILIES["SD 1.5"]()
    case.pipe.scheduler.set_timesteps(6)
    schedule = read_schedule(case.pipe.scheduler)
    given = case.inputs((0,))

    def denoiser(x, t, conditional, /):
        words = given["prompt_embeds" if conditional else "negative_prompt_embeds"]
        with torch.no_grad():
            return case.pipe.unet(x, t, encoder_hidden_states=words).sample

    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    arguments = (denoiser, noise, thg.Plan(6, (0, 2, 4)), schedule, ddim())
    assert thg.sample(*arguments, guidance_scale=5.0, check=False).x.isfinite().all()
    for call, place in ((4, "the conditional network output at step 2"), (5, "the unconditional .* output at step 2")):
        with hooked(case, nan_from(call)), pytest.raises(thg.errors.NonFiniteError, match=place):
            thg.sample(*arguments, guidance_scale=5.0, check=False)


@pytest.mark.parametrize("plan", ["default", "cfg"])
def test_nan_at_the_command_line_is_an_error_and_no_picture(tmp_path, plan):
    shutil.copytree(shipped_path("eps"), tmp_path / "model")
    (path,) = tmp_path.glob("model/unet/*.safetensors")
    weights = load_file(path)
    weights["conv_out.bias"].fill_(torch.nan)
    save_file(weights, path, {"format": "pt"})
    words = ("--model", tmp_path / "model", "--plan", plan, "--steps", 3, "-o", tmp_path / "a.png")
    assert "NaN or infinity" in refused("generate", "a bag", *words)
    assert not (tmp_path / "a.png").exists()


# -- out of memory


def out_of_memory_from(rows, error):
    """A hook: a batch of so many rows does not fit."""

    def hook(network, args, kwargs, output):
        if len(args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))) >= rows:
            raise error
        return output

    return hook


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator")],
)
@pytest.mark.parametrize("plan", [LEAP, CORRECTED], ids=["leap", "corrected"])
@pytest.mark.parametrize("kind", KINDS)
def test_out_of_memory_reaches_the_user_and_a_smaller_run_is_right(kind, plan, error):
    case = FAMILIES[kind]()
    plain = case.run()
    thg.enable(case.pipe, plan)
    before = case.run()
    two = {"prompts": (0, 1), "seeds": (0, 1)}
    rows = 4 if kind == "SD 1.5" else 2  # a batch of two, doubled or not
    with hooked(case, out_of_memory_from(rows, error)):
        with pytest.raises(type(error)) as raised:
            case.run(**two)
        assert raised.value is error
        assert not thg.summary(case.pipe).finished
        assert torch.equal(case.run(), before)  # one at a time, as users do then
    assert case.run(**two).isfinite().all()
    thg.disable(case.pipe)
    assert torch.equal(case.run(), plain)


def test_out_of_memory_in_the_middle_leaves_the_scheduler_as_it_was():
    case = FAMILIES["SD 1.5"]()
    thg.enable(case.pipe, CORRECTED)
    error = torch.OutOfMemoryError("CUDA out of memory.")
    with hooked(case, out_of_memory_from(2, error)), pytest.raises(torch.OutOfMemoryError):
        case.run()
    thg.disable(case.pipe)
    assert not {"step", "set_timesteps"} & set(vars(case.pipe.scheduler))
    json.loads(case.pipe.scheduler.to_json_string())
