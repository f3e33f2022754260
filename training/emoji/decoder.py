"""Stage 4: the decoder goes on, on latents as the denoiser makes them.

With guidance the denoiser's latents are off in a way of their own. A decoder that knows only those of real pictures
shows that as spots in plain areas. Here real pictures are noised to somewhere in the middle of a run and denoised by
the model, so that nearly the same pictures come out, with the model's errors; two thirds of what the decoder sees are
such latents. Whole pictures, for it takes the surroundings to tell a spot from a detail.
"""

from dataclasses import dataclass
from typing import Any, get_args

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler
from safetensors.torch import load_file

from training.emoji.autoencoder import DEVIATION, NOISE, PATCH, REFINED, encode, load_autoencoder
from training.emoji.batches import Batches, emoji_tokenizer
from training.emoji.data import Scope, as_floats, load_emoji
from training.emoji.export import emoji_pipeline
from training.loop import Options, option_parser, save_atomically, train
from training.tokenizer import MAX_LENGTH

BATCH = 32
STEPS, FIRST = 20, range(3, 15)
"""Of a run, and the steps at which a picture enters it."""

GUIDANCE = (3.0, 7.0)

FAITHFUL = 0.4
"""Root mean square difference from the picture's own latents, above which a place shows something else."""

SURROUNDINGS = 5
"""Side of the squares of latents over which that is taken."""


@dataclass(frozen=True)
class DecoderOptions(Options):
    """scope: the emoji that the denoiser knows; count: how many latents it makes."""

    scope: Scope
    count: int


@torch.inference_mode()
def denoised(pipe: Any, batches: Batches, count: int) -> dict[str, torch.Tensor]:
    """Latents that the denoiser has made from noised ones, and the pictures that these are of, by index."""
    scheduler = DDIMScheduler.from_config(pipe.scheduler.config)
    scheduler.set_timesteps(STEPS)
    generator = torch.Generator().manual_seed(0)
    empty = pipe.tokenizer([""], padding="max_length", max_length=MAX_LENGTH, return_tensors="pt").input_ids
    found: dict[str, list[torch.Tensor]] = {"latents": [], "of": []}
    for number, begun in enumerate(range(0, count, BATCH)):
        picked, tokens = batches.pick(min(BATCH, count - begun), generator)
        scale = GUIDANCE[0] + (GUIDANCE[1] - GUIDANCE[0]) * float(torch.rand((), generator=generator))
        times = scheduler.timesteps[FIRST[number % len(FIRST)] :]
        words = pipe.text_encoder(torch.cat([empty.expand_as(tokens), tokens]))[0]
        real = batches.latents[picked]
        x = scheduler.add_noise(real, torch.randn(real.shape, generator=generator), times[:1])
        for time in times:
            e_u, e_c = pipe.unet(torch.cat([x, x]), time, encoder_hidden_states=words).sample.chunk(2)
            x = scheduler.step(e_u + scale * (e_c - e_u), time, x).prev_sample
        found["latents"].append(x)
        found["of"].append(picked)
        print(f"{REFINED}: {begun + len(picked)} of {count} latents", flush=True)
    return {name: torch.cat(parts) for name, parts in found.items()}


def faithful_places(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Which places of latents still show the picture: (n, 16, 16)."""
    error = F.avg_pool2d((made - real).square().mean(1), SURROUNDINGS, 1, SURROUNDINGS // 2, count_include_pad=False)
    faithful = error <= FAITHFUL**2
    if not faithful.any():
        raise SystemExit("the denoiser makes nothing like the pictures yet: train it first (training.emoji.denoiser)")
    return faithful


def restoration_loss(made: torch.Tensor, pixels: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference of the pixels and of their differences to the next ones, where it is counted.

    The differences are what makes spots and blurred edges. Where the picture is white, more than white is as good: the
    pipeline cuts it off, and so small errors of the latents stay invisible there.
    """
    made = torch.where(pixels >= 1, made.clamp(max=1), made)
    error = (made - pixels) * counted.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)[:, None]
    return sum((part.abs().mean() for part in (error.diff(dim=2), error.diff(dim=3))), error.abs().mean())


def main(arguments: list[str] | None = None) -> None:
    parser = option_parser(__doc__, steps=12000, learning_rate=1e-3)
    parser.add_argument("--scope", choices=get_args(Scope), default="basic", help="the emoji that the denoiser knows")
    parser.add_argument("--count", type=int, default=2560, help="latents that the denoiser makes")
    parser.set_defaults(batch=9, checkpoint_every=100)
    options = DecoderOptions(**vars(parser.parse_args(arguments)))
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    batches = Batches(options.work, options.scope, emoji_tokenizer())
    path = options.work / "emoji_denoised.safetensors"
    if not path.exists():
        save_atomically(denoised(emoji_pipeline(options.work), batches, options.count), path)
    made = load_file(path)
    of_picture, made_latents = made["of"], made["latents"]
    faithful = faithful_places(made_latents, batches.latents[of_picture])

    emoji, pictures = load_emoji("all")
    pictures = pictures[torch.tensor([not one.held_out for one in emoji])]
    network = load_autoencoder(options.work)
    latents = encode(network, pictures)

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        real = torch.randint(len(latents), (options.batch // 3,), generator=generator)
        drawn = torch.randint(len(made_latents), (options.batch - len(real),), generator=generator)
        inputs = torch.cat([latents[real], made_latents[drawn]])
        inputs = DEVIATION * (inputs + NOISE * torch.randn(inputs.shape, generator=generator))
        pixels = as_floats(torch.cat([pictures[real], batches.pictures[of_picture[drawn]]]))
        counted = torch.cat([torch.ones(len(real), *faithful.shape[1:]), faithful[drawn]])
        return restoration_loss(network.decoder(inputs), pixels, counted)

    network.encoder.requires_grad_(False)
    train(network.decoder.train(), loss_of, options, REFINED)


if __name__ == "__main__":
    main()
