"""What a family of pipelines is to the tests, and the parts that the builders share.

Every network is a real diffusers class in a tiny size with random weights. Text encoders are left out where the
pipeline allows it: the inputs are embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, DPMSolverMultistepScheduler, UNet2DConditionModel
from torch import Tensor

STEPS = 6
GUIDANCE = 5.0
WIDTH = 16  # of every hidden dimension that can be chosen

Prompts = Sequence[int]  # a prompt is a number, from which its embeddings are drawn


def guidance_scale(on: bool) -> dict[str, Any]:
    """The arguments that switch guidance on or off, for most pipelines."""
    return {"guidance_scale": GUIDANCE if on else 1.0}


@dataclass
class Case:
    """One pipeline and how it is called.

    inputs: the arguments of a call that make these prompts.
    switch: the arguments that switch guidance on or off.
    per_prompt: the argument for several samples of each prompt.
    networks: the attributes with the networks whose evaluations count.
    """

    pipe: Any
    inputs: Callable[[Prompts], dict[str, Any]]
    switch: Callable[[bool], dict[str, Any]] = guidance_scale
    per_prompt: str = "num_images_per_prompt"
    networks: Sequence[str] = ("transformer",)
    extra: dict[str, Any] = field(default_factory=lambda: {"output_type": "latent"})

    def __post_init__(self) -> None:
        self.pipe.set_progress_bar_config(disable=True)
        for component in self.pipe.components.values():
            if isinstance(component, torch.nn.Module):
                component.eval()

    def run(
        self, prompts: Prompts = (0,), seeds: Sequence[int] = (0,), guided: bool = True, steps: int = STEPS, **more: Any
    ) -> Tensor:
        """The output of one run with a seed for each sample."""
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        if len(generators) > len(prompts):
            more[self.per_prompt] = len(generators) // len(prompts)
        arguments = {
            "num_inference_steps": steps,
            "generator": generators if len(generators) > 1 else generators[0],
            **self.extra,
            **self.inputs(prompts),
            **self.switch(guided),
            **more,
        }
        return _first_tensor(self.pipe(**arguments))


class Rows:
    """Counts the rows that reach the networks of a case, below anything that wraps their call.

    stop_at: at this network call, raise; `last` is what it was called with. networks: others than those of the case.
    """

    def __init__(self, case: Case, stop_at: int | None = None, networks: Sequence[str] = ()) -> None:
        self.networks = [getattr(case.pipe, name) for name in networks or case.networks]
        self.stop_at = stop_at
        self.rows = self.calls = 0

    def __enter__(self) -> Rows:
        self._hooks = [net.register_forward_pre_hook(self._count, with_kwargs=True) for net in self.networks]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _count(self, network: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls += 1
        if self.calls == self.stop_at:
            self.last = dict(_tensors({**{str(i): value for i, value in enumerate(args)}, **kwargs}))
            raise Broken
        sample = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
        self.rows += len(sample)


class Broken(Exception):
    """Raised in the middle of a run."""


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in a nested value, each with its path."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(item, f"{name}.{key}")


def _first_tensor(output: Any) -> Tensor:
    value = output[0]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value.detach().clone()


# -- random numbers


def randn(prompts: Prompts, *shape: int, salt: int = 0) -> Tensor:
    """For each prompt a tensor of this shape; another salt gives other numbers."""
    return torch.stack([torch.randn(shape, generator=_generator(1000 * salt + prompt)) for prompt in prompts])


def pairs(prompts: Prompts, length: int, width: int = WIDTH) -> dict[str, Tensor]:
    """Embeddings of the prompts and of their negative prompts, named as most pipelines name them."""
    return {
        "prompt_embeds": randn(prompts, length, width, salt=1),
        "negative_prompt_embeds": randn(prompts, length, width, salt=2),
    }


def masks(prompts: Prompts, length: int, dtype: torch.dtype = torch.long) -> tuple[Tensor, Tensor]:
    """Which tokens of the prompts, and of their negative prompts, count: all, and all but the last."""
    positive = torch.ones(len(prompts), length, dtype=dtype)
    negative = positive.clone()
    negative[:, -1] = 0
    return positive, negative


def lively(network: torch.nn.Module, seed: int = 0) -> Any:
    """The network with seeded random weights: no layer that starts at zero stays without effect."""
    generator = _generator(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(fan_in))
            elif name.endswith("bias"):
                parameter.zero_()
    return network


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- parts of Stable Diffusion


def unet(**config: Any) -> Any:
    defaults: dict[str, Any] = {
        "sample_size": 8,
        "block_out_channels": (WIDTH, WIDTH),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 2,
        "norm_num_groups": 4,
    }
    return lively(UNet2DConditionModel(**{**defaults, **config}))


def vae() -> Any:
    """Pictures of 8 by 8 to latents of 8 by 8."""
    return lively(AutoencoderKL(block_out_channels=(4,), norm_num_groups=2, latent_channels=4))


def without_text(**components: Any) -> dict[str, Any]:
    """The components of a Stable Diffusion pipeline that is called with embeddings and returns latents."""
    defaults = {
        "vae": None,
        "text_encoder": None,
        "tokenizer": None,
        "scheduler": ddim(),
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }
    return {**defaults, **components}


# -- schedulers


def ddim() -> DDIMScheduler:
    """As Stable Diffusion 1.5 configures it."""
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


def dpm() -> DPMSolverMultistepScheduler:
    return DPMSolverMultistepScheduler()
