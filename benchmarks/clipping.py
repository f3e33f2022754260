"""Does the corrector help with a scheduler that clips, if it uses the response of the same scheduler without clipping?

    python benchmarks/clipping.py --samples 16

The noise model with DDIM that clips its estimate of the result; thresholding with the default bound is the same. Error
of the final latents relative to plain CFG's in percent, mean / 95 % quantile / largest, with: the default (more
evaluations, evenly spread, no corrector), the corrector with its own number of evaluations, the corrector with as many
as the default, and its grid without it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import diffusers
import torch

import thg
from thg.adapter.describe import known_run
from thg.cli.calibrate import shipped_prompts
from thg.plans.fidelity import WITHOUT_CORRECTOR
from thg.plans.guide import HareGuide
from thg.plans.response import Response

HELD_OUT = 4_000_000  # the first seed
GUIDANCE = 5.0
CONFIGURATIONS: list[dict[str, Any]] = [{"clip_sample": True, "clip_sample_range": 3.0}, {"clip_sample": True}]


@dataclass(frozen=True)
class WithResponse:
    """The default planner with a response that the scheduler itself does not have."""

    response: Response
    effort: float = 1.0
    corrects: bool = True

    def guide(self, run: thg.Run) -> HareGuide:
        run = replace(run, response=self.response)
        plan = thg.within(effort=self.effort).plan(run)
        return HareGuide(plan if self.corrects else replace(plan, corrector=0.0), run)


def latents(pipe: Any, plan: Any, steps: int, samples: int) -> tuple[torch.Tensor, float]:
    with thg.enabled(pipe, plan):
        made = pipe(
            shipped_prompts(samples),
            generator=[torch.Generator().manual_seed(HELD_OUT + i) for i in range(samples)],
            num_inference_steps=steps,
            guidance_scale=GUIDANCE,
            output_type="latent",
        )
        report = thg.summary(pipe)
    return made.images.flatten(1), report.nfe / report.cfg_nfe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 50])
    options = parser.parse_args()
    pipe: Any = thg.shipped_pipeline("eps")
    pipe.set_progress_bar_config(disable=True)
    own = pipe.scheduler.config
    print("| DDIM with | steps | default | corrected | corrected, as many | its grid alone |\n" + "|---" * 6 + "|")
    for settings in CONFIGURATIONS:
        for steps in options.steps:
            response = known_run(diffusers.DDIMScheduler.from_config(own), steps).response
            assert response is not None
            pipe.scheduler = diffusers.DDIMScheduler.from_config(own, **settings)
            plain, _ = latents(pipe, thg.uniform(every=1), steps, options.samples)
            cells = [", ".join(f"{key}={value}" for key, value in settings.items()), str(steps)]
            for plan in (
                None,
                WithResponse(response),
                WithResponse(response, WITHOUT_CORRECTOR),
                WithResponse(response, WITHOUT_CORRECTOR, corrects=False),
            ):
                found, share = latents(pipe, plan, steps, options.samples)
                error = 100 * (found - plain).norm(dim=1) / plain.norm(dim=1)
                numbers = (error.mean(), error.quantile(0.95), error.max())
                cells.append(f"{share:.0%}: " + " / ".join(f"{float(number):.1f}" for number in numbers))
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
