"""Stage 2: the autoencoder, log-mel spectrograms of 64x64 to 8x8x12 latents."""

import torch
from diffusers import AutoencoderKL

from thg.models.sounds import FRAMES
from training.audio.shipped import start_from
from training.audio.sounds import WORK, load_sounds, log_mels
from training.loop import parse_options, train

KL_WEIGHT = 1e-4
"""Per latent value; keeps the latents near a normal distribution."""


def build_autoencoder() -> AutoencoderKL:
    """The untrained network."""
    return AutoencoderKL(
        in_channels=1,
        out_channels=1,
        latent_channels=12,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 16, 32, 64),
        layers_per_block=1,
        norm_num_groups=2,
        sample_size=FRAMES,
    )


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(__doc__, arguments, steps=2000, learning_rate=2e-3, work=WORK)
    waves, _ = load_sounds(options.work)
    spectrograms = log_mels(waves)[:, None]
    torch.manual_seed(options.seed)
    network = build_autoencoder()
    start_from(network, "vae")

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        batch = spectrograms[torch.randint(len(spectrograms), (options.batch,), generator=generator)]
        posterior = network.encode(batch).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator)
        restored = network.decode(posterior.mean + posterior.std * noise).sample
        divergence = 0.5 * (posterior.mean.square() + posterior.var - 1.0 - posterior.logvar).mean()
        difference = restored - batch
        return difference.square().mean() + 0.5 * difference.abs().mean() + KL_WEIGHT * divergence

    train(network, loss_of, options, "autoencoder")


if __name__ == "__main__":
    main()
