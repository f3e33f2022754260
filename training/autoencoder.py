"""Stage 1: the autoencoder, 32x32 greyscale to 8x8x4 latents."""

import torch
from diffusers import AutoencoderKL

from training.data import load_split
from training.loop import parse_options, train

KL_WEIGHT = 1e-5
"""Per latent value; only keeps the latents from drifting apart, the diffusion model does the rest."""


def build_autoencoder() -> AutoencoderKL:
    """The untrained network."""
    return AutoencoderKL(
        in_channels=1,
        out_channels=1,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=32,
    )


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(__doc__, arguments, steps=1100, learning_rate=2e-3)
    pictures, _ = load_split(options.data, "train", options.limit)
    torch.manual_seed(options.seed)
    network = build_autoencoder()

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        batch = pictures[torch.randint(len(pictures), (options.batch,), generator=generator)]
        posterior = network.encode(batch).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator)
        restored = network.decode(posterior.mean + posterior.std * noise).sample
        divergence = 0.5 * (posterior.mean.square() + posterior.var - 1.0 - posterior.logvar).mean()
        return (restored - batch).square().mean() + KL_WEIGHT * divergence

    train(network, loss_of, options, "autoencoder")


if __name__ == "__main__":
    main()
