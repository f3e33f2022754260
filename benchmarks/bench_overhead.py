"""The CPU time of thg itself in an enabled pipeline: microseconds per step beyond the same pipeline without thg.

    python benchmarks/bench_overhead.py
    PYTHONPATH=<another version>/src python benchmarks/bench_overhead.py

The network is a stub whose own time is not counted, in Stable Diffusion's pipeline (one call per step) and in one that
calls it once per branch. The runs take turns, and the median of the repeats counts. The first run after `enable`, which
also checks the layout of the branches, is not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from torch import Tensor

import thg

GUIDANCE = 5.0
SIZE = 64  # of the latents


class Stub(UNet2DConditionModel):  # type: ignore[misc]
    """A network that takes no time: `spent` is its CPU time so far."""

    spent = 0.0

    def forward(self, sample: Tensor, timestep: Any, encoder_hidden_states: Tensor, **others: Any) -> tuple[Tensor]:
        began = time.process_time()
        output = 0.1 * sample + 0.01 * encoder_hidden_states.mean(dim=(1, 2)).view(-1, 1, 1, 1)
        Stub.spent += time.process_time() - began
        return (output,)


class TwoCalls(StableDiffusionPipeline):  # type: ignore[misc]
    """Calls its network once per branch."""

    @torch.no_grad()
    def __call__(
        self, prompt_embeds: Tensor, negative_prompt_embeds: Tensor, num_inference_steps: int, latents: Tensor, **_: Any
    ) -> Tensor:
        guidance_scale = GUIDANCE
        self.scheduler.set_timesteps(num_inference_steps)
        for t in self.scheduler.timesteps:
            (e_c,) = self.unet(latents, t, encoder_hidden_states=prompt_embeds)
            (e_u,) = self.unet(latents, t, encoder_hidden_states=negative_prompt_embeds)
            latents = self.scheduler.step(e_u + guidance_scale * (e_c - e_u), t, latents, return_dict=False)[0]
        return latents


def own_time(pipe: Any, call: dict[str, Any]) -> float:
    """CPU seconds of a run outside the network."""
    before, began = Stub.spent, time.process_time()
    pipe(**call)
    return time.process_time() - began - (Stub.spent - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pipe = thg.shipped_pipeline()
    config = {name: value for name, value in pipe.unet.config.items() if not name.startswith("_")}
    pipe.unet = Stub(**config | {"sample_size": SIZE})
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randn(1, 8, pipe.unet.config.cross_attention_dim, generator=generator) for _ in range(2)]
    call = {
        "prompt_embeds": texts[0],
        "negative_prompt_embeds": texts[1],
        "num_inference_steps": options.steps,
        "guidance_scale": GUIDANCE,
        "latents": torch.randn(1, pipe.unet.config.in_channels, SIZE, SIZE, generator=generator),
        "output_type": "latent",
    }
    kinds: dict[str, tuple[Any, Any]] = {
        "one call": (pipe, thg.Batched()),
        "two calls": (TwoCalls(**pipe.components), thg.Sequential(denoisers=("unet",))),
    }
    plans = {"every second step": thg.uniform(every=2), "default": None}
    times: dict[str, list[float]] = {}
    for kind, (own, layout) in kinds.items():
        own.set_progress_bar_config(disable=True)
        for repeat in range(-1, options.repeats):  # the first one is a warm-up
            plain = own_time(own, call)
            for name, plan in plans.items():
                with thg.enabled(own, plan, layout=layout):
                    own(**call)
                    took = own_time(own, call)
                if repeat >= 0:
                    times.setdefault(f"{kind}, {name}", []).append(1e6 * (took - plain) / options.steps)
    medians = {name: round(statistics.median(values), 1) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:30}{value:8.0f} us per step")
    print(json.dumps({"benchmark": "overhead", "version": thg.__version__, **vars(options), "us_per_step": medians}))


if __name__ == "__main__":
    main()
