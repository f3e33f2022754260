"""Runs through ComfyUI's own nodes, and what they cost."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from dataclasses import dataclass
from typing import Any

import comfy.samplers
import nodes
import pytest
import torch
from comfy_api.latest import io
from comfy_extras import nodes_custom_sampler
from pack.nodes import TortoiseHareGuidance, TortoiseHareReport

STEPS = 20
PROMPTS = ("a dark ankle boot", "a light dress", "a medium grey bag")
EMOJI = ("panda", "red apple", "robot")
CFG = {"eps": 5.0, "flow": 4.0, "emoji": 5.0, "flux": 1.0}


@dataclass
class Result:
    latents: torch.Tensor
    pictures: torch.Tensor
    calls: list[int]  # branches of each evaluation of the network


def call(name: str, *inputs: Any, **named: Any) -> Any:
    """The first output of one of ComfyUI's extra nodes, "module.Class", in any version of its interface.

    named: inputs that not every version has. The test is skipped if this version has no such node.
    """
    module, kind = name.split(".")
    try:
        node = getattr(importlib.import_module(f"comfy_extras.nodes_{module}"), kind)
    except (ImportError, AttributeError):
        pytest.skip(f"this version of ComfyUI has no {kind}")
    function = node.execute if issubclass(node, io.ComfyNode) else getattr(node(), node.FUNCTION)
    known = inspect.signature(function).parameters
    return function(*inputs, **{key: value for key, value in named.items() if key in known})[0]


def with_thg(model: Any, **inputs: Any) -> Any:
    return TortoiseHareGuidance.execute(model, **inputs)[0]


def report(latents: torch.Tensor) -> str:
    return TortoiseHareReport.execute({"samples": latents})[1]


def estimate(latents: torch.Tensor) -> float:
    """The estimated error in the report."""
    found = re.search(r"\((\d+\.\d)%\)", report(latents))
    assert found, report(latents)
    return float(found[1]) / 100


def counted(model: Any, calls: list[int]) -> Any:
    """The same model; each evaluation of conditions is written down by the number of its branches."""

    def count(apply_model, args):
        calls.append(len(args["cond_or_uncond"]))
        return apply_model(args["input"], args["timestep"], **args["c"])

    model = model.clone()
    model.set_model_unet_function_wrapper(count)
    return model


def ksampler(shipped, model, sampler="euler", scheduler="normal", steps=STEPS, seed=0, latent=None, batch=1, **kwargs):
    """One run of the KSampler node; `positive`, `negative`, `cfg`, `denoise` as there."""
    calls: list[int] = []
    prompts = EMOJI if shipped.name == "emoji" else PROMPTS
    prompt, empty = shipped.encode(prompts[seed % len(prompts)]), shipped.encode("")
    latent = shipped.empty(batch) if latent is None else latent
    given = {"cfg": CFG[shipped.name], "positive": prompt, "negative": empty, **kwargs}
    (out,) = nodes.KSampler().sample(
        counted(model, calls), seed, steps, sampler_name=sampler, scheduler=scheduler, latent_image=latent, **given
    )
    return Result(out["samples"], shipped.decode(out["samples"]), calls)


def guider(shipped: Any, model: Any) -> Any:
    """The usual guider."""
    given = (shipped.encode(PROMPTS[0]), shipped.encode(""), CFG[shipped.name])
    return call("custom_sampler.CFGGuider", model, *given)


def custom(shipped: Any, guider: Any, steps: int = STEPS, sampler: Any = "euler") -> torch.Tensor:
    """One run of the node SamplerCustomAdvanced."""
    schedule = shipped.model.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(schedule, "normal", steps)
    noise = nodes_custom_sampler.Noise_RandomNoise(0)
    chosen = comfy.samplers.sampler_object(sampler) if isinstance(sampler, str) else sampler
    return call("custom_sampler.SamplerCustomAdvanced", noise, guider, chosen, sigmas, shipped.empty())["samples"]


@dataclass
class Compared:
    plain: Result
    ours: Result

    def __str__(self) -> str:
        return f"{self.psnr:.1f} dB, {self.error:.2%} off; {report(self.ours.latents).splitlines()[0]}"

    @property
    def psnr(self) -> float:
        return psnr(self.ours.pictures, self.plain.pictures)

    @property
    def error(self) -> float:
        """Of the latents, relative."""
        return float((self.ours.latents - self.plain.latents).norm() / self.plain.latents.norm())

    @property
    def share(self) -> float:
        """Of the evaluations."""
        return sum(self.ours.calls) / sum(self.plain.calls)


def compared(shipped, model, plain=None, **kwargs) -> Compared:
    """A run of a model with the node beside one without; given the latter, the model has the node already."""
    if plain is not None:
        return Compared(plain, ksampler(shipped, model, **kwargs))
    return Compared(ksampler(shipped, model, **kwargs), ksampler(shipped, with_thg(model), **kwargs))


def strip(latents: torch.Tensor) -> str:
    """One mark for each denoiser call of the run that made these latents."""
    return report(latents).splitlines()[1][1:-1]


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    error = float(((a - b) ** 2).mean())
    return math.inf if error == 0 else -10 * math.log10(error)


ALL_SAMPLERS = comfy.samplers.SAMPLER_NAMES
