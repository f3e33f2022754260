"""Stage 8: measure the model as the judge hears it (attributes, Frechet distance); a sheet and files of examples."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from thg.bench.metrics.frechet import Gaussian, frechet_distance
from thg.files import write_atomically
from thg.media import wav_bytes
from thg.models import load_folder
from thg.models.judge import SoundJudge, SoundVerdict
from thg.models.sounds import SAMPLING_RATE, Sound, log_mel, sound_prompts
from thg.plots.pictures import Column, sheet, spectrogram
from training.audio.shipped import SHIPPED
from training.audio.sounds import WORK, held_out, load_sounds, sound_of

BATCH = 20
GUIDANCE = 3.5
STEPS = 50


def generate(pipe: Any, prompts: list[str], guidance: float, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One sound for each prompt, and the spectrograms that the vocoder made them from.

    Each prompt has its own seed, so the batch size does not matter.
    """
    sounds: list[torch.Tensor] = []
    spectrograms: list[torch.Tensor] = []
    hook = pipe.vocoder.register_forward_pre_hook(lambda _, inputs: spectrograms.append(inputs[0]))
    for start in range(0, len(prompts), BATCH):
        chosen = prompts[start : start + BATCH]
        seeds = [torch.Generator().manual_seed(start + i) for i in range(len(chosen))]
        result = pipe(chosen, generator=seeds, num_inference_steps=steps, guidance_scale=guidance, output_type="pt")
        sounds.append(result.audios)
    hook.remove()
    return torch.cat(sounds), torch.cat(spectrograms)


def shares(verdict: SoundVerdict, asked: list[Sound]) -> dict[str, float]:
    """How often each attribute is right, and all of them."""
    return {name: round(float(values.float().mean()), 4) for name, values in verdict.right(asked).items()}


def distance(first: SoundVerdict, second: SoundVerdict) -> float:
    """Frechet distance in the judge's features."""
    return round(frechet_distance(Gaussian.of(first.features), Gaussian.of(second.features)), 3)


@torch.inference_mode()
def restored(pipe: Any, waves: torch.Tensor) -> dict[str, torch.Tensor]:
    """The spectrograms of rendered sounds after the autoencoder, after the vocoder, and after both."""
    spectrograms = log_mel(waves)
    coded = pipe.vae.decode(pipe.vae.encode(spectrograms[:, None]).latent_dist.mean).sample[:, 0]
    return {
        "autoencoder": coded,
        "vocoder": log_mel(pipe.vocoder(spectrograms)),
        "autoencoder and vocoder": log_mel(pipe.vocoder(coded)),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(WORK))
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--count", type=int, default=280, help="sounds to make; 280 has each combination once")
    parser.add_argument("--restored", type=int, default=200, help="rendered sounds to send through the vocoder")
    parser.add_argument("--guidance", type=float, default=GUIDANCE)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    pipe: Any = load_folder(options.model)
    pipe.set_progress_bar_config(disable=True)
    judge = SoundJudge.load()
    waves, rows = load_sounds(options.work, "test")
    truth = [sound_of(row) for row in rows.tolist()]
    real = judge(waves)
    found: dict[str, Any] = {"rendered": shares(real, truth)}
    for name, spectrograms in restored(pipe, waves[: options.restored]).items():
        error = float((spectrograms - log_mel(waves[: options.restored])).abs().mean())
        verdict = judge.of_spectrograms(spectrograms)
        found[name] = shares(verdict, truth[: options.restored]) | {"log-mel distance": round(error, 3)}
    prompts, asked = zip(*sound_prompts(options.count), strict=True)
    started = time.process_time()
    made, before_vocoder = generate(pipe, list(prompts), options.guidance, STEPS)
    seconds = (time.process_time() - started) / options.count
    verdict = judge(made)
    hidden = set(held_out())
    kept_back = torch.tensor([sound in hidden for sound in asked])
    right = verdict.right(list(asked))["all"]
    found["generated, before the vocoder"] = shares(judge.of_spectrograms(before_vocoder), list(asked))
    found[f"generated, guidance {options.guidance}"] = shares(verdict, list(asked)) | {
        "all, combinations that were held out": round(float(right[kept_back].float().mean()), 4),
        "frechet": distance(verdict, real),
        "sounds": options.count,
        "processor seconds for one": round(seconds, 2),
    }
    print(json.dumps(found, indent=2))
    write_atomically(options.work / "evaluation.json", (json.dumps(found, indent=2) + "\n").encode())
    _write_examples(options.work, list(prompts), made, list(asked), waves, truth)


def _write_examples(
    work: Path, prompts: list[str], made: torch.Tensor, asked: list[Sound], waves: torch.Tensor, truth: list[Sound]
) -> None:
    """A sheet of 20 generated sounds beside rendered ones of the same kind, and their files."""
    labels: list[str] = []
    columns = [Column("generated", "", []), Column("rendered", "", [])]
    for number, sound in enumerate(asked):
        if sound not in truth or len(labels) == 20:
            continue
        labels.append(prompts[number])
        columns[0].pictures.append(spectrogram(made[number].numpy(), SAMPLING_RATE))
        columns[1].pictures.append(spectrogram(waves[truth.index(sound)].numpy(), SAMPLING_RATE))
        name = prompts[number].replace(" ", "_")
        write_atomically(work / "examples" / f"{name}.wav", wav_bytes(made[number].numpy(), SAMPLING_RATE))
    sheet(labels, columns).save(work / "examples" / "sheet.png")


if __name__ == "__main__":
    main()
