"""Which plan should be the default? Measured on the shipped models, on seeds that no profile has seen.

    python benchmarks/choose_default.py --samples 64 --out results/choose_default

Each setting is run once and stored in a file, so the script can resume. It ends with the table.
PSNR is of the decoded picture to plain CFG's with the same seed. The Frechet distance is taken in the judge's features,
to the pictures of plain CFG.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import thg
from thg.bench.metrics.frechet import Gaussian, frechet_distance
from thg.cli.calibrate import shipped_prompts
from thg.files import write_atomically
from thg.media import CAP, psnr
from thg.models import DEFAULT_CALL, DEFAULT_GUIDANCE, GARMENTS
from thg.models.judge import Judge
from thg.profiles.profile import Profile

BUDGETS = (75, 70, 65, 60, 57)  # of 100
STEPS = 50
CORRECTOR = 0.7
HELD_OUT = 1_000_000  # the first seed of the held-out noise


@dataclass(frozen=True)
class Setting:
    """One row of the table at one budget."""

    name: str
    nfe: int
    make: Callable[[Profile, int], Any]


def settings() -> list[Setting]:
    def even(corrector: float) -> Callable[[Profile, int], Any]:
        return lambda _, nfe: thg.uniform(nfe=nfe, corrector=corrector)

    def dense_at_the_ends(corrector: float) -> Callable[[Profile, int], Any]:
        return lambda _, nfe: thg.tapered(nfe, corrector=corrector)

    def profile_plan(method: Any, order: int, corrector: float) -> Callable[[Profile, int], Any]:
        return lambda profile, nfe: profile.planner(nfe=nfe, method=method, hare_order=order, corrector=corrector)

    rows: list[tuple[str, Callable[[Profile, int], Any]]] = []
    for corrector, mark in ((0.0, ""), (CORRECTOR, " + corrector")):
        rows.append((f"uniform 2{mark}", even(corrector)))
        rows.append((f"tapered 2{mark}", dense_at_the_ends(corrector)))
        for method in ("algorithm2", "optimal"):
            rows += [(f"{method} {order}{mark}", profile_plan(method, order, corrector)) for order in (1, 2)]
    return [Setting(name, nfe, make) for nfe in BUDGETS for name, make in rows]


class Bench:
    """One shipped model with its held-out samples and what plain CFG makes of them."""

    def __init__(self, model: str, profile: Profile, samples: int, batch: int, folder: Path) -> None:
        self.model, self.profile, self.batch, self.folder = model, profile, batch, folder / model
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pipe: Any = thg.shipped_pipeline(model)  # type: ignore[arg-type]
        self.pipe.set_progress_bar_config(disable=True)
        self.prompts = shipped_prompts(samples)
        self.judge = Judge.load()
        asked = [max((g for g in GARMENTS if prompt.endswith(g)), key=len) for prompt in self.prompts]
        self.asked = torch.tensor([GARMENTS.index(garment) for garment in asked])
        plain_path = self.folder / f"plain-{samples}.pt"
        if plain_path.exists():
            self.plain = torch.load(plain_path, weights_only=True)
        else:
            self.plain, _ = self.pictures(thg.uniform(every=1), range(samples))
            torch.save(self.plain, plain_path)

    def pictures(self, plan: Any, samples: range) -> tuple[torch.Tensor, float]:
        """Pictures in [0, 1] and evaluations per sample."""
        made, evaluations = [], 0
        with thg.enabled(self.pipe, plan):
            for start in range(samples.start, samples.stop, self.batch):
                part = range(start, min(start + self.batch, samples.stop))
                result = self.pipe(
                    prompt=[self.prompts[i] for i in part],
                    generator=[torch.Generator().manual_seed(HELD_OUT + i) for i in part],
                    num_inference_steps=STEPS,
                    guidance_scale=DEFAULT_GUIDANCE[self.model],  # type: ignore[index]
                    output_type="pt",
                    **DEFAULT_CALL[self.model],  # type: ignore[index]
                )
                made.append(result.images.float().mean(dim=1, keepdim=True))
                evaluations += thg.summary(self.pipe).nfe * len(part)
        return torch.cat(made), evaluations / len(samples)

    def measure(self, name: str, nfe: int, plan: Any) -> dict[str, Any]:
        path = self.folder / f"{name.replace(' ', '-').replace('+', 'and')}-{nfe}-{len(self.prompts)}.json"
        if path.exists():
            return dict(json.loads(path.read_text()))
        start = time.perf_counter()
        pictures, evaluations = self.pictures(plan, range(len(self.prompts)))
        verdict, plain = self.judge(2 * pictures - 1, self.asked), self.judge(2 * self.plain - 1, self.asked)
        record = {
            "model": self.model,
            "setting": name,
            "budget": nfe,
            "nfe": evaluations,
            "psnr": [min(psnr(a, b), CAP) for a, b in zip(pictures.numpy(), self.plain.numpy(), strict=True)],
            "accuracy": float((verdict.garments == self.asked).float().mean()),
            "plain_accuracy": float((plain.garments == self.asked).float().mean()),
            "frechet": frechet_distance(Gaussian.of(verdict.features), Gaussian.of(plain.features)),
            "seconds": time.perf_counter() - start,
        }
        write_atomically(path, json.dumps(record).encode())
        return record


def table(records: list[dict[str, Any]]) -> str:
    lines = []
    for model in sorted({r["model"] for r in records}):
        plain = next(r["plain_accuracy"] for r in records if r["model"] == model)
        lines += [f"\n### {model} ({STEPS} steps, plain CFG: judge {plain:.1%})\n"]
        lines += ["PSNR to plain CFG in dB / judge accuracy / Frechet distance to plain CFG\n"]
        lines += ["| setting | " + " | ".join(f"{nfe} NFE" for nfe in BUDGETS) + " |", "|---" * 6 + "|"]
        for setting in dict.fromkeys(r["setting"] for r in records if r["model"] == model):
            found = {r["budget"]: r for r in records if (r["model"], r["setting"]) == (model, setting)}
            lines.append(f"| {setting} | " + " | ".join(_cell(found.get(nfe), nfe) for nfe in BUDGETS) + " |")
    return "\n".join(lines)


def _cell(record: dict[str, Any] | None, nfe: int) -> str:
    if record is None:
        return "-"
    psnr = sum(record["psnr"]) / len(record["psnr"])
    spent = "" if round(record["nfe"], 1) == nfe else f" ({record['nfe']:.1f})"
    return f"{psnr:.1f} / {record['accuracy']:.1%} / {record['frechet']:.3f}{spent}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["eps", "flow"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--calibration-samples", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/choose_default"))
    args = parser.parse_args()
    records = []
    for model in args.models:
        path = args.out / f"{model}-profile.json"
        if not path.exists():
            profile = thg.calibrate(
                thg.shipped_pipeline(model),
                shipped_prompts(args.calibration_samples),
                steps=STEPS,
                guidance_scale=DEFAULT_GUIDANCE[model],
                batch_size=args.batch_size,
                folder=args.out / f"{model}-parts",
                call=DEFAULT_CALL[model],
            )
            profile.save(path)
        bench = Bench(model, Profile.load(path), args.samples, args.batch_size, args.out)
        for setting in settings():
            if setting.nfe in args.budgets:
                records.append(bench.measure(setting.name, setting.nfe, setting.make(bench.profile, setting.nfe)))
                print(model, setting.name, _cell(records[-1], setting.nfe), flush=True)
    text = table(records)
    write_atomically(args.out / "table.md", text.encode())
    print(text)


if __name__ == "__main__":
    main()
