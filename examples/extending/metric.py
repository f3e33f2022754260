"""A metric of your own: how many pixels differ from plain CFG by more than the eye notices.

A metric that is a mean over samples needs a name, a direction, what it compares with, and `score`; batches, several
processes and the exact mean come with `MeanMetric`. For a distance between sets, such as FID, derive from `SetMetric`.

python examples/extending/metric.py
"""

import torch

import thg
from thg.bench.metrics import Batch, MeanMetric


class VisibleChange(MeanMetric):
    """The share of pixels that moved by more than 4 of 255 levels."""

    name = "visible_change"
    direction = "lower"  # is better
    needs = frozenset({"pairs"})  # `Batch.references`: plain CFG on the same prompts and seeds

    def score(self, batch: Batch) -> torch.Tensor:
        """One number per sample; pictures are floats in [0, 1]."""
        moved = (batch.pictures() - batch.reference_pictures()).abs() > 4 / 255
        return moved.flatten(1).double().mean(1)


if __name__ == "__main__":
    pipe = thg.shipped_pipeline()
    pipe.set_progress_bar_config(disable=True)
    prompts = ("a dark ankle boot", "a light dress")

    def pictures() -> torch.Tensor:
        noise = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
        call = {"num_inference_steps": 30, "guidance_scale": 5.0, "output_type": "pt"}
        images: torch.Tensor = pipe([*prompts], generator=noise, **call).images
        return images

    plain = pictures()
    for nfe in (0.55, 0.65, 0.8):
        metric = VisibleChange()
        with thg.enabled(pipe, thg.uniform(nfe=nfe)):
            metric.update(Batch(pictures(), prompts=prompts, references=plain))
            print(f"{thg.summary(pipe).nfe} evaluations: {metric.compute():.1%} of the pixels differ visibly")
