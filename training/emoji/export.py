"""Stage 5: the trained parts as a diffusers pipeline in half precision with the names of its emoji, and the judge.

The weights are the averages of the last checkpoints, so a model can be exported while its training goes on.
"""

import argparse
import json
import random
import shutil
from pathlib import Path
from typing import get_args

import torch
from diffusers import StableDiffusionPipeline
from safetensors import safe_open

from thg.bench.metrics.frechet import Gaussian
from thg.files import write_atomically
from thg.models.emoji_prompts import NAMES_PATH
from thg.models.judge import EMOJI_JUDGE_PATH, EMOJI_REFERENCE_PATH, EmojiJudge
from training.emoji.autoencoder import load_autoencoder
from training.emoji.batches import emoji_tokenizer
from training.emoji.captions import known_words
from training.emoji.data import Scope, as_floats, drawn_emoji, in_scope, load_emoji
from training.emoji.denoiser import build_model, build_scheduler, load_shipped
from training.export import MODELS, export
from training.loop import save_atomically

CAPTIONS = 500
"""How many captions the judge ranks for a picture, its own included."""


def emoji_pipeline(work: Path) -> StableDiffusionPipeline:
    """The model of the last checkpoints, or the shipped one as far as there are none, in single precision."""
    tokenizer = emoji_tokenizer()
    model = build_model(tokenizer)
    checkpoint = work / "emoji.ckpt.safetensors"
    if checkpoint.exists():
        with safe_open(checkpoint, framework="pt") as file, torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(file.get_tensor(f"average.{name}"))
    else:
        load_shipped(model)
    return StableDiffusionPipeline(
        vae=load_autoencoder(work),
        text_encoder=model["text_encoder"],
        tokenizer=tokenizer,
        unet=model["unet"],
        scheduler=build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def write_names(scope: Scope, path: Path) -> None:
    """The names of the scope, names of other emoji to rank them among, and the words of their captions."""
    emoji = [one for one, _ in drawn_emoji("all")]
    inside = [one for one in emoji if in_scope(one, scope)]
    others = [one.full_name for one in emoji if not in_scope(one, scope)]
    random.Random(0).shuffle(others)
    lists = {
        "trained": [one.full_name for one in inside if not one.held_out],
        "held_out": [one.full_name for one in inside if one.held_out],
        "others": others[: max(0, CAPTIONS - len(inside))],
        "words": known_words([one for one in inside if not one.held_out]),
    }
    write_atomically(path, (json.dumps(lists, indent=0) + "\n").encode())


def write_reference(scope: Scope, models: Path) -> None:
    """The mean and covariance of the judge's features of the scope's real pictures."""
    _, pictures = load_emoji(scope)
    judge = EmojiJudge.load(models / EMOJI_JUDGE_PATH.name, models / "emoji" / "tokenizer")
    mean, covariance = Gaussian.of(judge.features(as_floats(pictures)))
    reference = models / EMOJI_REFERENCE_PATH.name
    save_atomically({"mu": mean.float(), "sigma": covariance.float()}, reference)
    reference.chmod(0o644)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/training"))
    parser.add_argument("--models", type=Path, default=MODELS, help="folder that gets the model and its judge")
    parser.add_argument("--scope", choices=get_args(Scope), default="basic", help="what the model was trained on")
    options = parser.parse_args(arguments)
    export(emoji_pipeline(options.work), options.models / "emoji")
    write_names(options.scope, options.models / "emoji" / NAMES_PATH.name)
    trained, judge = options.work / "emoji_judge.final.safetensors", options.models / EMOJI_JUDGE_PATH.name
    if trained.exists():
        shutil.copyfile(trained, judge)
        judge.chmod(0o644)
    if judge.exists():
        write_reference(options.scope, options.models)


if __name__ == "__main__":
    main()
