"""Stage 4: the trained parts as a diffusers pipeline in half precision, and the judge.

The weights are the averages of the last checkpoints, so a model can be exported while its training goes on.
"""

import argparse
import shutil
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline
from safetensors import safe_open

from training.emoji.autoencoder import load_autoencoder
from training.emoji.batches import emoji_tokenizer
from training.emoji.denoiser import build_model, build_scheduler
from training.export import MODELS, export


def emoji_pipeline(work: Path) -> StableDiffusionPipeline:
    """The model of the last checkpoint, in single precision."""
    tokenizer = emoji_tokenizer()
    model = build_model(tokenizer)
    with safe_open(work / "emoji.ckpt.safetensors", framework="pt") as file, torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(file.get_tensor(f"average.{name}"))
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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/training"))
    parser.add_argument("--models", type=Path, default=MODELS, help="folder that gets the model and its judge")
    options = parser.parse_args(arguments)
    export(emoji_pipeline(options.work), options.models / "emoji")
    judge = options.work / "emoji_judge.final.safetensors"
    if judge.exists():
        shutil.copyfile(judge, options.models / "emoji_judge.safetensors")


if __name__ == "__main__":
    main()
