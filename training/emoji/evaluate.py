"""Stage 6: measure the model as the judge sees it (recall of captions, Frechet distance), and make a sheet."""

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image

from thg.models import load_folder
from thg.models.emoji_prompts import EMOJI_PROMPTS
from thg.models.judge import EmojiJudge
from training.emoji.data import Emoji, Scope, as_floats, in_scope, load_emoji
from training.emoji.export import CAPTIONS
from training.evaluate import distance, generate
from training.export import MODELS


def ranked_among(names: list[str], asked: list[str], seed: int) -> list[str]:
    """CAPTIONS captions, those that were asked for and others of the same scope (all of them if there are fewer)."""
    others = [name for name in names if name not in set(asked)]
    random.Random(seed).shuffle(others)
    return [*dict.fromkeys(asked), *others][:CAPTIONS]


def measure(judge: EmojiJudge, pictures: torch.Tensor, asked: list[str], names: list[str]) -> dict[str, Any]:
    """Recall at 1 and 5 of pictures in [-1, 1], and how often each name that was missed was missed."""
    captions = ranked_among(names, asked, seed=0)
    ranks = judge.ranks(pictures, [captions.index(name) for name in asked], captions)
    at_1, at_5 = ((ranks < count).float().mean().item() for count in (1, 5))
    missed = Counter(name for name, rank in zip(asked, ranks.tolist(), strict=True) if rank)
    return {
        "pictures": len(asked),
        "captions": len(captions),
        "recall at 1": round(at_1, 3),
        "at 5": round(at_5, 3),
        "missed": dict(missed),
    }


def sheet(pictures: torch.Tensor, columns: int = 10) -> Image.Image:
    """Pictures in [-1, 1] in rows."""
    grid = pictures.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    return Image.fromarray(grid.clamp(-1, 1).add(1).mul(127.5).round().byte().numpy().astype(np.uint8))


def parts(
    emoji: list[Emoji], pictures: torch.Tensor, count: int, repeats: int
) -> dict[str, list[tuple[str, torch.Tensor]]]:
    """Names and real pictures: `count` that the model was trained on; all held-out combinations, `repeats` times."""
    chosen: dict[str, list[tuple[str, torch.Tensor]]] = {"trained": [], "held out": []}
    order = list(range(len(emoji)))
    random.Random(0).shuffle(order)
    for index in order:
        part = chosen["held out" if emoji[index].held_out else "trained"]
        part.append((emoji[index].full_name, as_floats(pictures[index])))
    return {"trained": chosen["trained"][:count], "held out": chosen["held out"] * repeats}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder with emoji/ and emoji_judge.safetensors")
    parser.add_argument("--scope", choices=get_args(Scope), default="basic", help="what the model was trained on")
    parser.add_argument("--pictures", type=int, default=200, help="of names that the model was trained on")
    parser.add_argument("--repeats", type=int, default=4, help="pictures of each held-out combination")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--guidance", type=float, nargs="+", default=[5.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sheet", type=Path, help="write 40 pictures here")
    parser.add_argument("--report", type=Path, help="write the numbers here as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)

    judge = EmojiJudge.load(options.models / "emoji_judge.safetensors", options.models / "emoji" / "tokenizer")
    pipe = load_folder(options.models / "emoji")
    pipe.set_progress_bar_config(disable=True)
    emoji, pictures = load_emoji("all")
    kept = [index for index, one in enumerate(emoji) if in_scope(one, options.scope)]
    names = [one.full_name for one in emoji]
    chosen = parts([emoji[index] for index in kept], pictures[kept], options.pictures, options.repeats)
    report: dict[str, Any] = {"scope": options.scope, "steps": options.steps, "seed": options.seed}
    for part, members in chosen.items():
        asked, real = [name for name, _ in members], torch.stack([picture for _, picture in members])
        with torch.inference_mode():
            restored = pipe.vae.decode(pipe.vae.encode(real).latents).sample
        report[f"{part}, real"] = measure(judge, real, asked, names)
        report[f"{part}, autoencoded"] = measure(judge, restored, asked, names)
        for guidance in options.guidance:
            started = time.monotonic()
            made = generate(pipe, asked, options.seed, options.steps, guidance, {})
            row = measure(judge, made, asked, names)
            row["frechet"] = round(distance(judge.features(made), judge.features(real)), 3)
            row["seconds"] = round(time.monotonic() - started, 1)
            report[f"{part}, guidance {guidance:g}"] = row
            print(f"{part}, guidance {guidance:g}: {json.dumps(row)}", flush=True)
    if options.report:
        options.report.write_text(json.dumps(report, indent=1) + "\n")
    if options.sheet:
        made = generate(pipe, list(EMOJI_PROMPTS), options.seed, options.steps, options.guidance[-1], {})
        sheet(made).save(options.sheet, optimize=True)


if __name__ == "__main__":
    main()
