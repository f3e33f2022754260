"""Stage 6: write the trained weights as diffusers pipeline folders, in half precision, and the judge beside them.

A model that has not finished training is exported from the average in its last checkpoint.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusion3Pipeline, StableDiffusionPipeline
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CLIPTokenizer

from training import eps, flow
from training.latents import load_autoencoder
from training.tokenizer import build_tokenizer

MODELS = Path(__file__).parents[1] / "src" / "thg" / "models"


def averaged_weights(work: Path, name: str) -> dict[str, torch.Tensor]:
    """The final averaged parameters, or those of the last checkpoint while training runs, or goes on after an end."""
    final, checkpoint = work / f"{name}.safetensors", work / f"{name}.ckpt.safetensors"
    if final.exists() and not (checkpoint.exists() and checkpoint.stat().st_mtime > final.stat().st_mtime):
        return load_file(final)
    prefix = "average."
    return {key.removeprefix(prefix): value for key, value in load_file(checkpoint).items() if key.startswith(prefix)}


def load_weights(model: nn.ModuleDict, work: Path, name: str) -> nn.ModuleDict:
    """Put the averaged parameters into a model; what is not a parameter (position tables) is as built."""
    missing, unexpected = model.load_state_dict(averaged_weights(work, name), strict=False)
    parameters = {key for key, _ in model.named_parameters()}
    if unexpected or parameters.intersection(missing):
        raise SystemExit(f"{name}: the weights in {work} are of another architecture; train again")
    return model.eval()


def scaled_autoencoder(work: Path, *, shifted: bool) -> AutoencoderKL:
    """The autoencoder, knowing the scale (and for flow the shift) of its latents."""
    latents = load_file(work / "latents.safetensors")
    network = load_autoencoder(work)
    shift = float(latents["shift"]) if shifted else None
    network.register_to_config(scaling_factor=float(latents["scale"]), shift_factor=shift)
    return network


def eps_pipeline(work: Path, tokenizer: CLIPTokenizer) -> StableDiffusionPipeline:
    """The Stable Diffusion model, in single precision."""
    model = load_weights(eps.build_model(tokenizer), work, "eps")
    return StableDiffusionPipeline(
        vae=scaled_autoencoder(work, shifted=False),
        text_encoder=model["text_encoder"],
        tokenizer=tokenizer,
        unet=model["unet"],
        scheduler=eps.build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def flow_pipeline(work: Path, tokenizer: CLIPTokenizer) -> StableDiffusion3Pipeline:
    """The flow twin, in single precision."""
    model = load_weights(flow.build_model(tokenizer), work, "flow")
    return StableDiffusion3Pipeline(
        vae=scaled_autoencoder(work, shifted=True),
        transformer=model["transformer"],
        scheduler=flow.build_scheduler(),
        text_encoder=model["text_encoder"],
        tokenizer=tokenizer,
        text_encoder_2=model["text_encoder_2"],
        tokenizer_2=tokenizer,
        text_encoder_3=None,
        tokenizer_3=None,
    )


def _write_vocabulary(folder: Path) -> None:
    """Put vocab.json and merges.txt, which older versions of transformers read, beside tokenizer.json."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False))
    lines = ["#version: 0.2", *(pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")


def _write_old_names(file: Path) -> None:
    """Put the prefix that every version of transformers reads before the tensors' names of a text encoder."""
    tensors = {
        name if name.startswith(("text_model.", "text_projection.")) else f"text_model.{name}": tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})


def export(pipe: StableDiffusionPipeline | StableDiffusion3Pipeline, folder: Path) -> None:
    """Write a pipeline in half precision; the folder is replaced as a whole."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    for part in pipe.components.values():
        if isinstance(part, nn.Module):
            part.half()
    pipe.save_pretrained(temporary, safe_serialization=True)
    for tokenizer in temporary.glob("tokenizer*"):
        _write_vocabulary(tokenizer)
    for file in temporary.glob("text_encoder*/model.safetensors"):
        _write_old_names(file)
    for file in temporary.rglob("*.safetensors"):
        file.chmod(0o644)
    if folder.exists():
        shutil.rmtree(folder)
    temporary.rename(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 1e6:.2f} MB")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/training"))
    parser.add_argument(
        "--models", type=Path, default=MODELS, help="folder that gets eps/, flow/ and judge.safetensors"
    )
    parser.add_argument("--only", choices=("eps", "flow", "judge"), nargs="+", default=("eps", "flow", "judge"))
    options = parser.parse_args(arguments)
    tokenizer = build_tokenizer()
    options.models.mkdir(parents=True, exist_ok=True)
    for name, build in (("eps", eps_pipeline), ("flow", flow_pipeline)):
        if name in options.only:
            export(build(options.work, tokenizer), options.models / name)
    if "judge" in options.only:
        target = options.models / "judge.safetensors"
        shutil.copyfile(options.work / "judge.final.safetensors", target)
        print(f"{target}: {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
