"""Stage 7: measure a model as the judge sees it (garment, tone, Frechet distance), and make a sheet to look at."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from thg.bench.metrics.frechet import Gaussian, frechet_distance
from thg.models import GARMENTS, SHIPPED, TONES, benchmark_prompts, load_folder, prompt_for
from thg.models.judge import Judge
from training.data import DEBIAN_FOLDER, load_split
from training.export import MODELS

BATCH = 50


def generate(
    pipe: Any, prompts: list[str], first_seed: int, steps: int, guidance: float, extra: dict[str, int]
) -> torch.Tensor:
    """One picture for each prompt, in [-1, 1]; each has its own seed, so the batch size does not matter."""
    pictures = []
    for start in range(0, len(prompts), BATCH):
        chosen = prompts[start : start + BATCH]
        seeds = [torch.Generator().manual_seed(first_seed + start + i) for i in range(len(chosen))]
        result = pipe(
            chosen, generator=seeds, num_inference_steps=steps, guidance_scale=guidance, output_type="pt", **extra
        )
        pictures.append(result.images * 2 - 1)
    return torch.cat(pictures)


def distance(features: torch.Tensor, others: torch.Tensor) -> float:
    """Frechet distance of two sets of features."""
    return frechet_distance(Gaussian.of(features), Gaussian.of(others))


def measure(
    pictures: torch.Tensor, labels: torch.Tensor, tones: torch.Tensor, judge: Judge, real: torch.Tensor
) -> dict[str, Any]:
    """Accuracies and the distance to the features of real pictures."""
    verdict = judge(pictures, labels)
    right = verdict.garments == labels
    by_garment = {name: round(float(right[labels == i].float().mean()), 3) for i, name in enumerate(GARMENTS)}
    by_tone = {name: round(float((verdict.tones[tones == i] == i).float().mean()), 3) for i, name in enumerate(TONES)}
    return {
        "garment": round(float(right.float().mean()), 4),
        "tone": round(float((verdict.tones == tones).float().mean()), 4),
        "frechet": round(distance(verdict.features, real), 3),
        "garment_by_name": by_garment,
        "tone_by_name": by_tone,
    }


def real_references(
    pipe: Any, judge: Judge, data: Path, count: int, limit: int | None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Features of the real test pictures, and what real and merely autoencoded pictures score against them."""
    test, _ = load_split(data, "t10k", limit)
    train, _ = load_split(data, "train", limit)
    real = judge(test).features
    sample = train[:count]
    with torch.inference_mode():
        restored = torch.cat([pipe.vae.decode(pipe.vae.encode(b).latent_dist.mean).sample for b in sample.split(250)])
    distances = {
        f"real, {len(train[:10000])} training pictures": distance(judge(train[:10000]).features, real),
        f"real, {len(sample)} training pictures": distance(judge(sample).features, real),
        f"autoencoded, the same {len(sample)}": distance(judge(restored).features, real),
    }
    error = float((restored.clamp(-1, 1) - sample).square().mean())
    return real, {"frechet": {k: round(v, 3) for k, v in distances.items()}, "autoencoder_mse": round(error, 5)}


def contact_sheet(pipe: Any, steps: int, guidance: float, extra: dict[str, int], zoom: int = 3) -> Image.Image:
    """A row for each garment, four pictures for each tone."""
    prompts = [prompt_for(garment, tone) for garment in GARMENTS for tone in TONES for _ in range(4)]
    pictures = generate(pipe, prompts, 10_000, steps, guidance, extra).add(1).mul(127.5).round().byte()
    grid = pictures.unflatten(0, (len(GARMENTS), -1)).squeeze(2).permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
    image = Image.fromarray(grid.numpy())
    return image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder with eps/, flow/ and judge.safetensors")
    parser.add_argument("--name", choices=("eps", "flow"), default="eps")
    parser.add_argument("--data", type=Path, default=DEBIAN_FOLDER)
    parser.add_argument("--limit", type=int, help="use only this many real pictures")
    parser.add_argument("--per-garment", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--guidance", type=float, nargs="+", help="scales to measure; the model's default if not given")
    parser.add_argument("--padding", type=int, help="max_sequence_length of the flow pipeline (its default is 256)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", type=Path, help="write a contact sheet here")
    parser.add_argument("--report", type=Path, help="write the numbers here as JSON")
    options = parser.parse_args(arguments)

    judge = Judge.load(options.models / "judge.safetensors")
    pipe = load_folder(options.models / options.name)
    pipe.set_progress_bar_config(disable=True)
    extra = {"max_sequence_length": options.padding} if options.padding else {}
    asked = list(benchmark_prompts(options.per_garment))
    prompts = [prompt for prompt, _, _ in asked]
    labels, tones = torch.tensor([label for _, label, _ in asked]), torch.tensor([tone for _, _, tone in asked])
    real, references = real_references(pipe, judge, options.data, len(prompts), options.limit)
    report = {"model": options.name, "steps": options.steps, "pictures": len(prompts), "real": references}
    print(json.dumps(report), flush=True)
    for guidance in options.guidance or [SHIPPED[options.name].guidance_scale]:
        started = time.monotonic()
        pictures = generate(pipe, prompts, options.seed, options.steps, guidance, extra)
        row = measure(pictures, labels, tones, judge, real)
        row["seconds"] = round(time.monotonic() - started, 1)
        report[f"guidance {guidance:g}"] = row
        print(f"guidance {guidance:g}: {json.dumps(row)}", flush=True)
    if options.report:
        options.report.write_text(json.dumps(report, indent=1) + "\n")
    if options.sheet:
        guidance = (options.guidance or [SHIPPED[options.name].guidance_scale])[-1]
        contact_sheet(pipe, options.steps, guidance, extra).save(options.sheet)


if __name__ == "__main__":
    main()
