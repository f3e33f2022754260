"""Does the default keep its promise? The shipped models on held-out seeds, beside plain runs.

    python benchmarks/fidelity.py --samples 60 --out results/fidelity
    python benchmarks/fidelity.py --samples 16 --other 0.4
    python benchmarks/fidelity.py --samples 16 --models eps --scales 1

For each model, scheduler, number of steps and guidance scale (1 is without guidance): the share of the plain run's
evaluations; PSNR of the picture to the plain one, mean and worst 5 %; how many runs end within 1 % of the plain run's
latents; and how many estimates (`summary.estimated_error`) are right within a factor of 2. --other: the same for
another plan, a share of the evaluations. Each cell is stored in a file, so the script can resume; the tables are
printed at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import thg
from thg.files import write_atomically
from thg.models import SHIPPED
from thg.models.scheduler_choice import Schedulers
from thg.plans.tolerance import DEFAULT_ERROR

HELD_OUT = 7_000_000  # the first seed; those from 4,000,000 to here have chosen the grids
FIRST_ORDER = {"eps": "DDIMScheduler", "emoji": "DDIMScheduler", "flow": "FlowMatchEulerDiscreteScheduler"}
SECOND_ORDER = ("DPMSolverMultistepScheduler", "UniPCMultistepScheduler")


class Model:
    """A shipped model and its held-out samples."""

    def __init__(self, name: Any, samples: int, batch: int) -> None:
        self.name, self.batch = name, batch
        self.pipe: Any = thg.shipped_pipeline(name)
        self.pipe.set_progress_bar_config(disable=True)
        self.schedulers = Schedulers(self.pipe.scheduler)
        self.prompts = SHIPPED[name].calibration(samples)

    def latents(self, scheduler: str, steps: int, scale: float, plan: Any) -> tuple[torch.Tensor, float, list[float]]:
        """Final latents, share of CFG's evaluations, and the estimated error of each sample (none for plain CFG)."""
        self.pipe.scheduler = self.schedulers.make(scheduler)
        made, errors, share = [], [], 1.0
        for start in range(0, len(self.prompts), self.batch):
            prompts = self.prompts[start : start + self.batch]
            seeds = [torch.Generator().manual_seed(HELD_OUT + start + k) for k in range(len(prompts))]
            call = {"prompt": prompts, "generator": seeds, "num_inference_steps": steps, "guidance_scale": scale}
            call |= {"output_type": "latent", **SHIPPED[self.name].call}
            if plan is False:
                made.append(self.pipe(**call).images)
                continue
            with thg.enabled(self.pipe, plan):
                made.append(self.pipe(**call).images)
                report = thg.summary(self.pipe)
            share = report.nfe / report.cfg_nfe
            errors += list(report.estimated_error or ())
        return torch.cat(made), share, errors

    @torch.no_grad()
    def pictures(self, latents: torch.Tensor) -> torch.Tensor:
        config = self.pipe.vae.config
        latents = latents / config.scaling_factor + (getattr(config, "shift_factor", None) or 0)
        return (self.pipe.vae.decode(latents, return_dict=False)[0] / 2 + 0.5).clamp(0, 1)

    def measure(self, scheduler: str, steps: int, scale: float, other: float | None) -> dict[str, Any]:
        plain, _, _ = self.latents(scheduler, steps, scale, False)
        wanted = self.pictures(plain)
        cell: dict[str, Any] = {"model": self.name, "scheduler": scheduler, "steps": steps, "guidance_scale": scale}
        plans: dict[str, Any] = {"default": thg.within()}
        if other is not None:
            plans[f"{other:.0%}"] = other
        for name, plan in plans.items():
            latents, share, estimated = self.latents(scheduler, steps, scale, plan)
            wrong = (latents - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)
            square = (self.pictures(latents) - wanted).flatten(1).square().mean(dim=1).clamp(min=1e-10)
            psnr = (-10 * square.log10()).tolist()
            cell[name] = {"share": share, "psnr": psnr, "error": wrong.tolist(), "estimated": estimated}
        return cell


def cells(options: argparse.Namespace) -> Iterator[tuple[Any, str, int, float]]:
    for model in options.models:
        schedulers = options.schedulers or (FIRST_ORDER[model], *SECOND_ORDER)
        scales = [SHIPPED[model].guidance_scale, *options.scales]
        yield from product((model,), schedulers, options.steps, scales)


def table(found: list[dict[str, Any]]) -> str:
    names = ["share", "PSNR mean / worst 5 %", "within 1 %", "estimate within 2x"]
    plans = [name for name, value in found[0].items() if isinstance(value, dict)]
    titles = [f"{plan}: {name}" for plan in plans for name in names]
    lines = [f"| {' | '.join(['model', 'scheduler', 'w', 'steps', *titles])} |", "|---" * (4 + len(titles)) + "|"]
    for cell in found:
        columns = [cell["model"], cell["scheduler"].removesuffix("Scheduler"), f"{cell['guidance_scale']:g}"]
        columns += [str(cell["steps"]), *(column for plan in plans for column in _columns(cell[plan]))]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def _columns(found: dict[str, Any]) -> list[str]:
    error, estimated = np.array(found["error"]), np.array(found["estimated"])
    right = "–" if not estimated.size else f"{np.mean(np.abs(np.log2(estimated / error)) <= 1):.0%}"
    return [f"{found['share']:.0%}", _both(found["psnr"]), f"{np.mean(error <= DEFAULT_ERROR):.0%}", right]


def _both(psnr: list[float]) -> str:
    return f"{np.mean(psnr):.1f} / {np.quantile(psnr, 0.05):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["eps", "flow", "emoji"])
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 28, 50, 100])
    parser.add_argument("--scales", type=float, nargs="*", default=[7.5], help="besides the model's own")
    parser.add_argument(
        "--schedulers", nargs="*", default=[], help="such as UniPCMultistepScheduler (default: three per model)"
    )
    parser.add_argument("--other", type=float, help="a share of the evaluations, beside the default")
    parser.add_argument("--out", type=Path, default=Path("results/fidelity"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    models: dict[str, Model] = {}
    found = []
    for name, scheduler, steps, scale in cells(options):
        path = options.out / f"{name}-{scheduler}-{steps}-{scale:g}-{options.samples}-{options.other}.json"
        if not path.exists():
            model = models.setdefault(name, Model(name, options.samples, options.batch_size))
            write_atomically(path, json.dumps(model.measure(scheduler, steps, scale, options.other)).encode())
        found.append(json.loads(path.read_text()))
        print(table(found[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(found))


if __name__ == "__main__":
    main()
