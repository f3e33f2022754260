"""Stage 4: computed once with the trained autoencoder: latent moments, sounds, and the restored spectrograms."""

import argparse
from pathlib import Path

import torch
from diffusers import AutoencoderKL

from thg.models.sounds import log_mel
from training.audio.autoencoder import build_autoencoder
from training.audio.shipped import start_from
from training.audio.sounds import WORK, load_sounds
from training.export import averaged_weights
from training.loop import save_atomically


def load_autoencoder(work: Path) -> AutoencoderKL:
    """The network of stage 2, or the shipped one if that stage has not run."""
    network = build_autoencoder()
    if any((work / f"autoencoder{part}safetensors").exists() for part in (".", ".ckpt.")):
        network.load_state_dict(averaged_weights(work, "autoencoder"))
    elif not start_from(network, "vae"):
        raise SystemExit(f"no autoencoder in {work}: run python -m training.audio.autoencoder first")
    return network.eval()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(WORK))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    waves, sounds = load_sounds(options.work)
    network = load_autoencoder(options.work)
    means, deviations, spectrograms, squares = [], [], [], []
    with torch.inference_mode():
        for batch in waves.split(100):
            original = log_mel(batch)
            posterior = network.encode(original[:, None]).latent_dist
            restored = network.decode(posterior.mean).sample[:, 0]
            means.append(posterior.mean)
            deviations.append(posterior.std)
            spectrograms.append(restored.half())
            squares.append((restored - original).square().mean((1, 2)))
        mean, deviation = torch.cat(means), torch.cat(deviations)
    error = float(torch.cat(squares).mean())
    scale = 1.0 / (mean.square().mean() + deviation.square().mean()).sqrt()
    tensors = {"mean": mean, "deviation": deviation, "sounds": sounds, "scale": scale}
    save_atomically(tensors, options.work / "latents.safetensors")
    save_atomically({"spectrograms": torch.cat(spectrograms)}, options.work / "restored.safetensors")
    print(f"latents: {len(mean)} sounds, scale {scale:.4f}, squared error of the spectrograms {error:.4f}")


if __name__ == "__main__":
    main()
