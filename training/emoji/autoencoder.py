"""Stage 1: the autoencoder, 64x64 in colour to 16x16x8 latents.

The encoder is not trained but computed: the principal components of squares of 4x4 pixels. So the latents are known at
once, the denoiser can be trained before, beside or after the decoder, and a better decoder never makes the denoiser
obsolete.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderTiny
from safetensors.torch import load_file
from torch import nn

from training.emoji.data import as_floats, load_emoji
from training.export import MODELS
from training.loop import Options, option_parser, save_atomically, train

CHANNELS = 8
PATCH = 4
WHITENING = 0.25
"""Components are divided by their variance to this power: fine ones count more than in pixels, less than evenly."""

DEVIATION = 0.5
"""Of the latents; the decoder begins with 3 tanh(z / 3)."""

CROP = 8
"""Side of the squares of latents that the decoder trains on: it is local, and many small squares teach more."""

NOISE = 0.05
"""Deviation of the noise on the decoder's inputs, in the denoiser's units: a denoiser is never exact."""


def build_autoencoder() -> AutoencoderTiny:
    """The network with an encoder that has no nonlinearity, and an untrained decoder."""
    network = AutoencoderTiny(
        encoder_block_out_channels=(3 * PATCH**2,) * 3,
        decoder_block_out_channels=(32, 32, 32),
        num_encoder_blocks=(0, 0, 0),
        num_decoder_blocks=(7, 4, 0),
        latent_channels=CHANNELS,
        scaling_factor=1 / DEVIATION,
    )
    for layer in network.decoder.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    for name, layer in network.decoder.named_modules():
        if name.endswith("conv.4"):  # the last of a residual block, which so begins as the identity
            nn.init.zeros_(layer.weight)
    return network


TRAINED, REFINED = "emoji_decoder", "emoji_decoder_refined"
"""The decoder after this stage, and after the last one (`training.emoji.decoder`)."""


@dataclass(frozen=True)
class AutoencoderOptions(Options):
    """encoder_only: train nothing; scratch: not from the shipped weights."""

    encoder_only: bool
    scratch: bool


@torch.no_grad()
def compute_encoder(network: AutoencoderTiny, pictures: torch.Tensor) -> None:
    """Fill the encoder: two convolutions gather each 4x4 square in 48 channels, the last one projects them."""
    first, second, third, last = network.encoder.layers
    for layer in (first, second, third, last):
        layer.weight.zero_()
    first.bias.zero_()
    for colour in range(3):
        first.weight[colour, colour, 1, 1] = 1.0
    for layer, inputs in ((second, 3), (third, 12)):
        for place in range(4):
            for channel in range(inputs):
                layer.weight[place * inputs + channel, channel, 1 + place // 2, 1 + place % 2] = 1.0
    squares = torch.cat([third(second(first(as_floats(part).add(1).div(2)))) for part in pictures.split(200)])
    values = squares.movedim(1, 3).flatten(0, 2).double()
    mean = values.mean(0)
    variances, directions = torch.linalg.eigh((values - mean).T @ (values - mean) / len(values))
    variances, directions = variances.flip(0)[:CHANNELS], directions.flip(1)[:, :CHANNELS]
    signs = directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    factors = variances ** (-WHITENING)
    factors *= DEVIATION / (variances * factors.square()).mean().sqrt()
    projection = (directions * signs * factors).T
    last.weight[:, :, 1, 1] = projection.float()
    last.bias.copy_((-projection @ mean).float())


def shipped_part(name: str) -> Path:
    """The folder of a part of the shipped model, from which training goes on."""
    folder = MODELS / "emoji" / name
    if not folder.is_dir():
        raise SystemExit(f"no trained model in {folder} to go on from: begin anew with --scratch")
    return folder


def load_autoencoder(work: Path) -> AutoencoderTiny:
    """The encoder and the decoder as far as this folder has them, the shipped ones otherwise."""
    encoder = work / "emoji_encoder.safetensors"
    network = build_autoencoder()
    if encoder.exists():
        network.encoder.load_state_dict(load_file(encoder))
    else:  # from_pretrained alone would export the path of the folder, too
        shipped = AutoencoderTiny.from_pretrained(shipped_part("vae"), torch_dtype=torch.float32)
        network.load_state_dict(shipped.state_dict())
    found = (work / f"{name}.ckpt.safetensors" for name in (REFINED, TRAINED))
    decoder = next((path for path in found if path.exists()), None)
    if decoder is not None:
        average = {name: value for name, value in load_file(decoder).items() if name.startswith("average.")}
        network.decoder.load_state_dict({name.removeprefix("average."): value for name, value in average.items()})
    return network.eval()


@torch.inference_mode()
def encode(network: AutoencoderTiny, pictures: torch.Tensor) -> torch.Tensor:
    """The scaled latents (n, 8, 16, 16) of pictures in bytes."""
    parts = [network.encode(as_floats(part)).latents for part in pictures.split(200)]
    return torch.cat(parts) * network.config.scaling_factor


def draw_crops(
    latents: torch.Tensor, pictures: torch.Tensor, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Squares of latents, with noise, and their pixels.

    Of three candidates the one with the most contrast, to see little white.
    """
    found = []
    for _ in range(count):
        candidates = []
        for _ in range(3):
            index = int(torch.randint(len(latents), (), generator=generator))
            top, left = torch.randint(latents.shape[-1] - CROP + 1, (2,), generator=generator).tolist()
            candidates.append((latents[index, :, top : top + CROP, left : left + CROP], index, top, left))
        found.append(max(candidates, key=lambda one: float(one[0].var(dim=(1, 2)).sum())))
    inputs = torch.stack([square for square, *_ in found])
    noise = NOISE * DEVIATION * torch.randn(inputs.shape, generator=generator)
    return inputs + noise, torch.stack([pixels_of(pictures[i], top, left) for _, i, top, left in found])


def pixels_of(picture: torch.Tensor, top: int, left: int) -> torch.Tensor:
    """The pixels of the square of latents at this place."""
    side = PATCH * CROP
    return as_floats(picture[:, PATCH * top :, PATCH * left :][:, :side, :side])


def main(arguments: list[str] | None = None) -> None:
    parser = option_parser(__doc__, steps=6000, learning_rate=2e-3)
    parser.add_argument("--encoder-only", action="store_true", help="compute the encoder, and train nothing")
    parser.add_argument("--scratch", action="store_true", help="do not begin with the shipped weights")
    parser.set_defaults(batch=8, checkpoint_every=100)
    options = AutoencoderOptions(**vars(parser.parse_args(arguments)))
    torch.set_num_threads(options.threads)
    emoji, pictures = load_emoji("all")
    pictures = pictures[torch.tensor([not one.held_out for one in emoji])]
    options.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    if options.scratch and not (options.work / "emoji_encoder.safetensors").exists():
        network = build_autoencoder()
        compute_encoder(network, pictures)
        save_atomically(network.encoder.state_dict(), options.work / "emoji_encoder.safetensors")
    if options.encoder_only:
        return
    network = load_autoencoder(options.work).train()
    network.encoder.requires_grad_(False)
    latents = encode(network, pictures) / network.config.scaling_factor

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        inputs, pixels = draw_crops(latents, pictures, options.batch, generator)
        return F.l1_loss(network.decoder(inputs), pixels)

    train(network.decoder, loss_of, options, TRAINED)


if __name__ == "__main__":
    main()
