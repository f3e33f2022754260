"""A policy of your own: it decides at each step whether the unconditional branch runs, and what is used otherwise.

A policy makes a guide when a run starts (`guide(run)`); the guide's three methods are called at each step, and it is
discarded after the run. This one evaluates every third step, and lets the last guidance term fade in between.

python examples/extending/policy.py
"""

from dataclasses import dataclass

import torch

import thg
from thg.bench.metrics import Batch
from thg.bench.metrics.fidelity import PSNR
from thg.plans import Guide, RunInfo, Term


@dataclass(frozen=True)
class Fading:
    """The argument of `thg.enable`; it has no state, so one can be used for many pipelines."""

    every: int = 3
    share: float = 0.95  # of the term that is left after a step

    def guide(self, run: RunInfo) -> Guide:
        return FadingGuide(self)


class FadingGuide:
    """One run. The methods are called in order of the steps."""

    plan: thg.Plan | None = None  # the plan that it follows, if any: for the summary

    def __init__(self, chosen: Fading) -> None:
        self._chosen = chosen
        self._last: Term = ()

    def evaluates(self, step: int) -> bool:
        """Must the unconditional branch run at this step?"""
        return step % self._chosen.every == 0 or not self._last

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        """A new guidance term, e_c - e_u; a tuple, since a network may return several tensors. None: use it."""
        self._last = term
        return None

    def predict(self, step: int, conditional: Term) -> Term | None:
        """The term to use if it was not evaluated. None would be no guidance."""
        self._last = tuple(part * self._chosen.share for part in self._last)
        return self._last


if __name__ == "__main__":
    pipe = thg.shipped_pipeline()
    pipe.set_progress_bar_config(disable=True)
    prompts = ["a dark ankle boot", "a light dress"]

    def pictures() -> torch.Tensor:
        noise = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
        call = {"num_inference_steps": 30, "guidance_scale": 5.0, "output_type": "pt"}
        images: torch.Tensor = pipe(prompts, generator=noise, **call).images
        return images

    plain = pictures()
    for policy in (Fading(), Fading(share=1.0), thg.uniform(every=3)):
        with thg.enabled(pipe, policy):
            psnr = PSNR()
            psnr.update(Batch(pictures(), references=plain))
            print(f"{policy}: {thg.summary(pipe).nfe} evaluations, {psnr.compute():.1f} dB to plain CFG")
            assert thg.summary(pipe).nfe == 40
