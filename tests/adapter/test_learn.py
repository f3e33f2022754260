"""The layout from one step: each formula that pipelines use, on branches as close to each other as networks give."""

from __future__ import annotations

import pytest
import torch
from diffusers.guiders.adaptive_projected_guidance import normalized_guidance
from diffusers.guiders.guider_utils import rescale_noise_cfg
from torch import Tensor

from thg.adapter.fit import Fit, combine, combine_reordered, least_squares
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.learn import Learned, Unclear, learn
from thg.adapter.readings import Outputs

W = 4.5
SHAPE = (2, 4, 16, 16)


def branches(n: int = 2, shape: tuple[int, ...] = SHAPE, apart: float = 0.05, dtype: torch.dtype = torch.float32):
    """Outputs of n branches that differ by little, as those of a network at its first step do."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(shape, generator=generator)
    return [(base + apart * torch.randn(shape, generator=generator)).to(dtype) for _ in range(n)]


def guided(cond: Tensor, uncond: Tensor, w: float = W) -> Tensor:
    return uncond + w * (cond - uncond)


def learned(calls: list[Outputs], passed: Tensor, sample: Tensor | None = None) -> Learned:
    result = learn(calls, passed, sample)
    assert isinstance(result, Learned), result
    return result


def one(*parts: Tensor) -> list[Outputs]:
    return [Outputs("unet", (torch.cat(parts),))]


def each(*parts: Tensor) -> list[Outputs]:
    return [Outputs("transformer", (part,)) for part in parts]


# -- the mathematics


def test_least_squares_is_that_of_numpy():
    columns = [torch.randn(3, 50, dtype=torch.float64) for _ in range(4)]
    target = torch.randn(3, 50, dtype=torch.float64)
    own = torch.cat(least_squares(columns, target), 1)
    for row in range(3):
        matrix = torch.stack([column[row] for column in columns], 1)
        torch.testing.assert_close(own[row], torch.linalg.lstsq(matrix, target[row]).solution)


def test_a_dependent_column_gets_no_coefficient():
    a, b = torch.randn(2, 1, 30, dtype=torch.float64)
    coefficients = least_squares([a, b, 2 * a], 3 * a + b)
    torch.testing.assert_close(torch.cat(coefficients, 1), torch.tensor([[3.0, 1.0, 0.0]], dtype=torch.float64))


def test_each_row_has_a_combination_of_its_own():
    a, b = (part.flatten(1) for part in branches())
    scale = torch.tensor([[0.5], [0.8]])
    found = Fit.read(combine([a, b], scale * (a + W * (b - a))).tolist(), 2)
    assert found.error < 0.1
    assert found.shares == pytest.approx((1 - W, W), rel=1e-4)
    assert found.spread < 1e-3
    assert 0.5 < found.scale < 0.8


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("w", [W, 1 - W])
def test_reordered_numbers_tell_w_and_sign(w: float, sign: int):
    a, b = branches()
    passed = sign * (a + w * (b - a))
    shuffled = passed.flatten()[torch.randperm(passed.numel())]
    found = Fit.read(combine_reordered([a, b], shuffled).tolist(), 2)
    assert found.error < 1
    assert found.scale == sign
    assert found.shares == pytest.approx((1 - w, w), rel=1e-3)


def test_what_is_not_a_combination_has_an_error():
    a, b = (part.flatten(1) for part in branches())
    found = Fit.read(combine([a, b], (a + W * (b - a)).tanh()).tolist(), 2)
    assert found.error > 100


# -- layouts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_both_orders_of_one_call(dtype: torch.dtype):
    cond, uncond = branches(dtype=dtype)
    first = learned(one(uncond, cond), guided(cond, uncond))
    assert first.layout == Batched(("uncond", "cond"), ("uncond",), ("unet",))
    assert first.w == pytest.approx(W, rel=0.02)
    assert "one call, unconditional first, w = 4.5" in first.words.replace("4.49", "4.5").replace("4.51", "4.5")
    second = learned(one(cond, uncond), guided(cond, uncond))
    assert second.layout == Batched(("cond", "uncond"), ("uncond",), ("unet",))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_orders_of_two_calls(dtype: torch.dtype):
    cond, uncond = branches(dtype=dtype)
    first = learned(each(cond, uncond), guided(cond, uncond))
    assert first.layout == Sequential(("transformer",))
    assert first.words.startswith("two calls, conditional first, w = 4.")
    second = learned(each(uncond, cond), guided(cond, uncond))
    assert second.layout == Sequential(("transformer",), branches=("uncond", "cond"))


def test_a_network_of_its_own_for_the_unconditional_branch():
    cond, uncond = branches()
    calls = [Outputs("transformer", (cond,)), Outputs("other", (uncond,))]
    assert learned(calls, guided(cond, uncond)).layout == Sequential(("transformer",), unconditional="other")


def test_other_calls_of_the_step_do_not_confuse():
    cond, uncond = branches()
    text, control = (
        Outputs("text_encoder", (torch.randn(2, 77, 32),)),
        Outputs("controlnet", (torch.randn(4, 8, 16, 16),)),
    )
    assert learned([text, control, *one(uncond, cond)], guided(cond, uncond)).layout.denoisers == ("unet",)
    calls = [text, control, *each(cond), control, *each(uncond)]
    assert isinstance(learned(calls, guided(cond, uncond)).layout, Sequential)


def test_three_branches():
    cond, image, uncond = branches(3)
    passed = uncond + 7.5 * (cond - image) + 1.5 * (image - uncond)
    found = learned(one(cond, image, uncond), passed)
    assert found.layout == Batched(("cond", "branch 2", "branch 3"), ("branch 2", "branch 3"), ("unet",))
    assert found.w == pytest.approx(7.5, rel=1e-3)


def test_a_branch_without_effect_is_not_predicted():
    cond, image, uncond = branches(3)
    found = learned(one(cond, image, uncond), guided(cond, image))  # a picture's scale of 1
    assert found.layout == Batched(("cond", "branch 2", "branch 3"), ("branch 2",), ("unet",))
    own = learn(one(cond, image, uncond), guided(cond, image), idle=True)
    assert own.layout.predicted == ("branch 2", "branch 3"), "a pipeline of diffusers"


@pytest.mark.parametrize("calls", [one, each])
def test_prompts_that_are_added_up_are_left_alone(calls):
    """On the shipped model, a boot and a dress at once: leaps would end as far from plain CFG as a run without it."""
    uncond, one_prompt, other_prompt = branches(3)
    passed = uncond + 3 * (one_prompt - uncond) + 2 * (other_prompt - uncond)
    assert "adds up several prompts" in unclear(calls(uncond, one_prompt, other_prompt), passed).why


def test_a_module_that_is_called_after_the_network():
    """Its output could be the scheduler's input, going by the number of its elements."""
    cond, uncond = branches()
    calls = [*one(uncond, cond), Outputs("normalize", (torch.randn(2, 3, 32, 32),))]
    assert learned(calls, guided(cond, uncond)).layout == Batched(denoisers=("unet",))


def test_an_extra_call_runs_as_it_is():
    uncond, cond, skipped = branches(3)
    passed = guided(cond, uncond) + 2.8 * (cond - skipped)
    assert learned([*one(uncond, cond), *[Outputs("unet", (skipped,))]], passed).layout == Batched(denoisers=("unet",))
    assert learned(each(cond, uncond, skipped), passed).layout == Sequential(("transformer",))


FORMULAS = {
    "rescaled": lambda c, u: rescale_noise_cfg(guided(c, u), c, 0.7),
    "negated": lambda c, u: -guided(c, u),
    "norm of each token": lambda c, u: (
        guided(c, u) * (c.norm(dim=1, keepdim=True) / guided(c, u).norm(dim=1, keepdim=True))
    ),
    "norm of each token, negated": lambda c, u: (
        -guided(c, u) * (c.norm(dim=-1, keepdim=True) / guided(c, u).norm(dim=-1, keepdim=True))
    ),
    "zero star": lambda c, u: guided(c, u * ((c * u).sum((1, 2, 3), True) / (u * u).sum((1, 2, 3), True))),
    "projected": lambda c, u: normalized_guidance(c, u, W, eta=0.0, use_original_formulation=True),
    "reshaped": lambda c, u: guided(c, u).flatten(2),
    "transposed": lambda c, u: guided(c, u).permute(0, 2, 3, 1),
    "packed": lambda c, u: (
        guided(c, u).unflatten(2, (8, 2)).unflatten(4, (8, 2)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    ),
    "unguided variance": lambda c, u: torch.cat([guided(c, u)[:, :2], c[:, 2:]], 1),
    "variance cut off": lambda c, u: guided(c, u)[:, :2],
    "the later entries": lambda c, u: guided(c, u)[:, :, 4:],
    "rows of both branches": lambda c, u: guided(c, u).repeat(2, 1, 1, 1),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("cond_first", [True, False])
def test_formulas(name: str, cond_first: bool):
    cond, uncond = branches()
    passed = FORMULAS[name](cond, uncond)
    order = (cond, uncond) if cond_first else (uncond, cond)
    names = ("cond", "uncond") if cond_first else ("uncond", "cond")
    assert learned(one(*order), passed).layout.branches == names
    if passed.shape[0] == SHAPE[0]:
        assert learned(each(*order), passed).layout.branches == names


def test_a_conversion_with_the_sample():
    """v-prediction to x0 and back to noise: P = c v + s x."""
    cond, uncond = branches()
    sample = torch.randn(SHAPE)
    assert learned(one(uncond, cond), 0.3 * sample - 0.8 * guided(cond, uncond), sample).layout == Batched(
        denoisers=("unet",)
    )


@pytest.mark.parametrize("frames", [3, 6])  # with 6, the numbers of the later ones are no fraction of all
def test_tokens_of_later_frames(frames):
    cond, uncond = branches(shape=(1, frames * 16, 8))
    passed = guided(cond, uncond).mT.unflatten(2, (frames, 4, 4))[:, :, 1:]
    assert learned(one(uncond, cond), passed).layout == Batched(denoisers=("unet",))


def test_lists_of_samples():
    cond, uncond = branches()
    calls = [Outputs("transformer", (*cond, *uncond))]
    assert learned(calls, guided(cond, uncond)).layout == Batched(("cond", "uncond"), ("uncond",), ("transformer",))


# -- what cannot be said


def unclear(calls: list[Outputs], passed: Tensor) -> Unclear:
    result = learn(calls, passed)
    assert isinstance(result, Unclear), result
    return result


def test_reasons():
    cond, uncond = branches()
    assert "same output" in unclear(one(cond, cond), cond).why
    assert "guidance is off" in unclear(one(uncond, cond), cond.clone()).why
    assert "averaged" in unclear(one(uncond, cond), guided(cond, uncond, 0.5)).why
    masked = torch.where(torch.arange(16) < 8, guided(cond, uncond), guided(cond, uncond, 1.5))
    assert "combined in different ways" in unclear(one(uncond, cond), masked).why
    assert "no guidance in this step" in unclear([Outputs("unet", (cond[:1],))], cond[:1]).why
    assert not unclear([Outputs("unet", (cond[:1],))], cond[:1]).shapeless
    assert unclear(one(uncond, cond), guided(cond, uncond)[:, :, :5, :3]).shapeless
    nonlinear = unclear(one(uncond, cond), guided(cond, uncond).tanh())
    assert "no combination of its network outputs" in nonlinear.why
    assert "unet: 4x4x16x16" in nonlinear.why
    assert not nonlinear.again


def test_a_batch_without_guidance_is_not_taken_for_two_branches():
    (samples,) = branches(1)
    assert not isinstance(learn([Outputs("unet", (samples,))], samples), Learned)


def test_clipped_guidance_is_not_explained():
    cond, uncond = branches()
    assert isinstance(learn(one(uncond, cond), guided(cond, uncond).clamp(-1, 1)), Unclear)


def test_the_host_waits_once(monkeypatch: pytest.MonkeyPatch):
    """All readings are computed on the device and read together."""
    reads = []
    original = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: (reads.append(self.shape), original(self))[1])
    for name in ("item", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(Tensor, name, lambda self, *_: pytest.fail("a wait of the host"))
    cond, uncond = branches()
    assert isinstance(learn(one(uncond, cond), guided(cond, uncond), cond), Learned)
    assert len(reads) == 1
