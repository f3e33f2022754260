"""Stage 7: write the trained weights as a pipeline folder, in half precision, the judge beside it, and its reference.

A stage that has not finished is exported from the average in its last checkpoint.
"""

import argparse
import os
import shutil
from pathlib import Path

from diffusers import AudioLDM2Pipeline
from safetensors.torch import load_file
from torch import nn

from thg.bench.metrics.frechet import Gaussian
from thg.models.judge import SOUND_JUDGE_PATH, SOUND_REFERENCE_PATH, SoundJudge
from training.audio.latents import load_autoencoder
from training.audio.model import build_pipeline, denoiser
from training.audio.sounds import WORK, load_sounds
from training.audio.vocoder import build_vocoder
from training.export import MODELS, averaged_weights, load_weights
from training.loop import save_atomically


def audio_pipeline(work: Path) -> AudioLDM2Pipeline:
    """The sound model, in single precision."""
    autoencoder = load_autoencoder(work)
    autoencoder.register_to_config(scaling_factor=float(load_file(work / "latents.safetensors")["scale"]))
    vocoder = build_vocoder()
    vocoder.load_state_dict(averaged_weights(work, "vocoder"), strict=False)
    pipe = build_pipeline(autoencoder, vocoder.eval())
    load_weights(denoiser(pipe), work, "denoiser")
    return pipe


def write_folder(pipe: AudioLDM2Pipeline, folder: Path) -> None:
    """Write the pipeline in half precision; the folder is replaced as a whole."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    for part in pipe.components.values():
        if isinstance(part, nn.Module):
            part.half()
    pipe.save_pretrained(temporary, safe_serialization=True)
    for file in temporary.rglob("*.safetensors"):
        file.chmod(0o644)
    if folder.exists():
        shutil.rmtree(folder)
    temporary.rename(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 1e6:.2f} MB")


def write_judge(work: Path, models: Path) -> None:
    """The judge, and the mean and covariance of its features of the rendered test sounds."""
    target = models / SOUND_JUDGE_PATH.name
    shutil.copyfile(work / "judge.final.safetensors", target)
    waves, _ = load_sounds(work, "test")
    mean, covariance = Gaussian.of(SoundJudge.load(target)(waves).features)
    reference = models / SOUND_REFERENCE_PATH.name
    save_atomically({"mu": mean.float(), "sigma": covariance.float()}, reference)
    for file in (target, reference):
        file.chmod(0o644)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(WORK))
    parser.add_argument("--models", type=Path, default=MODELS, help="gets audio/ and sound_judge.safetensors")
    options = parser.parse_args(arguments)
    write_folder(audio_pipeline(options.work), options.models / "audio")
    write_judge(options.work, options.models)


if __name__ == "__main__":
    main()
