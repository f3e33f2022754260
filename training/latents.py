"""Stage 3: what the diffusion models train on, computed once: latent moments, labels and tones of the training set."""

import argparse
import os
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file

from thg.models.garments import GARMENTS, TONES, brightness
from training.autoencoder import build_autoencoder
from training.data import DEBIAN_FOLDER, load_split
from training.loop import save_atomically

UNCLEAR = -1
"""The tone of a picture whose brightness is too near a border; its captions do not name a tone."""

MARGIN = 0.04
"""Half the width of the unclear band around a border, as a share of the garment's pictures."""


def load_autoencoder(work: Path) -> AutoencoderKL:
    """The network of stage 1."""
    network = build_autoencoder()
    network.load_state_dict(load_file(work / "autoencoder.safetensors"))
    return network.eval()


def tone_borders(values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The terciles of brightness within each garment: shape (garments, 2)."""
    shares = torch.tensor([1 / 3, 2 / 3])
    rows = [torch.quantile(values[labels == label], shares) for label in range(len(GARMENTS))]
    return torch.stack(rows)


def clear_tones(values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The tone of each picture by its rank within its garment, UNCLEAR within MARGIN of a tercile."""
    tones = torch.full_like(labels, UNCLEAR)
    for label in range(len(GARMENTS)):
        members = (labels == label).nonzero().squeeze(1)
        rank = values[members].argsort().argsort() / len(members)
        third = (rank * len(TONES)).long()
        distance = torch.minimum((rank - 1 / 3).abs(), (rank - 2 / 3).abs())
        tones[members] = torch.where(distance < MARGIN, UNCLEAR, third)
    return tones


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/training"))
    parser.add_argument("--data", type=Path, default=DEBIAN_FOLDER)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)

    pictures, labels = load_split(options.data, "train", options.limit)
    network = load_autoencoder(options.work)
    means, deviations = [], []
    with torch.inference_mode():
        for batch in pictures.split(500):
            posterior = network.encode(batch).latent_dist
            means.append(posterior.mean)
            deviations.append(posterior.std)
    mean, deviation = torch.cat(means), torch.cat(deviations)
    tensors = {
        "mean": mean,
        "deviation": deviation,
        "labels": labels,
        "tones": clear_tones(brightness(pictures), labels),
        "scale": 1.0 / (mean.var() + deviation.square().mean()).sqrt(),
        "shift": mean.mean(),
    }
    save_atomically(tensors, options.work / "latents.safetensors")
    print(f"latents: {len(mean)} pictures, scale {tensors['scale']:.4f}, shift {tensors['shift']:.4f}")


if __name__ == "__main__":
    main()
