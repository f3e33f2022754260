"""Why the pictures of two ranks differ from those of one, with thg and without: rounding, and how far it reaches.

    python benchmarks/serving_ranks.py --precision bf16 --pictures 24

A rank alone adds up the guidance as `u + w (c - u)`, two CFG-parallel ranks of SGLang as `w c + (1 - w) u`. Here one
process does both, with the shipped flow model and without an engine: PSNR between the pictures of the two.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

import thg
from thg.serving.request import Output, ServedRun, planned, run_of

PROMPTS = ("a dark ankle boot", "a light dress", "a striped shirt", "a small bag")
SCALE = 4.0
WAYS = {  # steps, and what is asked for
    "20 steps": (20, "off"),
    "20 steps, thg `1%`": (20, "1%"),
    "13 steps": (13, "off"),
    "20 steps, thg `0.5`": (20, 0.5),
}
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Server:
    """The shipped flow model, all pictures in one batch."""

    def __init__(self, precision: torch.dtype, count: int) -> None:
        self._pipe = thg.shipped_pipeline("flow")
        self._network = self._pipe.transformer.to(precision)
        self._precision, self._count = precision, count
        encoded = [self._pipe.encode_prompt(prompt, prompt, prompt) for prompt in PROMPTS]
        texts = [encoded[i % len(PROMPTS)] for i in range(count)]
        self._texts = [torch.cat(each).to(precision) for each in zip(*texts, strict=True)]

    @torch.no_grad()
    def pictures(self, steps: int, asked: object, two_ranks: bool) -> Tensor:
        scheduler = FlowMatchEulerDiscreteScheduler.from_config(self._pipe.scheduler.config)
        scheduler.set_timesteps(steps)
        plan = planned(asked)
        run = run_of(scheduler, scheduler.timesteps, branches=2, guidance_scale=SCALE)
        served = None if plan is None else ServedRun(plan, run)
        latents = self._noise()
        output: Output
        for index, t in enumerate(scheduler.timesteps):
            evaluate = functools.partial(self._guided, latents, t, two_ranks)
            if served is None:
                output = evaluate()
            else:
                output = served.step(index, evaluate, model=None, branches=2, state=latents)
            latents = scheduler.step(output, t, latents, return_dict=False)[0]
        vae = self._pipe.vae
        found = vae.decode(latents.float() / vae.config.scaling_factor + (vae.config.shift_factor or 0)).sample
        return (found / 2 + 0.5).clamp(0, 1)

    def _noise(self) -> Tensor:
        shape = (self._network.config.in_channels, *[self._network.config.sample_size] * 2)
        return torch.stack(
            [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(self._count)]
        )

    def _guided(self, latents: Tensor, t: Tensor, two_ranks: bool) -> Tensor:
        text, no_text, pooled, not_pooled = self._texts
        c, u = (
            self._network(
                hidden_states=latents.to(self._precision),
                timestep=t.expand(self._count),
                encoder_hidden_states=words,
                pooled_projections=summed,
            ).sample
            for words, summed in ((text, pooled), (no_text, not_pooled))
        )
        return SCALE * c + (1 - SCALE) * u if two_ranks else u + SCALE * (c - u)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--pictures", type=int, default=24)
    options = parser.parse_args()
    server = Server(PRECISIONS[options.precision], options.pictures)
    for name, (steps, asked) in WAYS.items():
        one, two = (server.pictures(steps, asked, two_ranks) for two_ranks in (False, True))
        psnr = -10 * np.log10((one - two).square().mean((1, 2, 3)).numpy())
        print(f"| {name} | {psnr.mean():.1f} +- {psnr.std():.1f} dB |", flush=True)


if __name__ == "__main__":
    main()
