"""Stage 6: the denoiser, AudioLDM 2's U-Net, trained together with its text networks."""

import random

import torch
from safetensors.torch import load_file

from thg.models import load_folder
from training.audio.autoencoder import build_autoencoder
from training.audio.captions import caption
from training.audio.model import build_pipeline, build_scheduler, denoiser, encode
from training.audio.shipped import SHIPPED
from training.audio.sounds import WORK, sound_of
from training.audio.vocoder import build_vocoder
from training.conditions import DROPOUT
from training.eps import SNR_CAP
from training.loop import parse_options, train


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(__doc__, arguments, steps=20_000, learning_rate=8e-4, work=WORK)
    tensors = load_file(options.work / "latents.safetensors")
    mean, deviation, scale = tensors["mean"], tensors["deviation"], float(tensors["scale"])
    sounds = [sound_of(row) for row in tensors["sounds"].tolist()]
    torch.manual_seed(options.seed)
    pipe = build_pipeline(build_autoencoder(), build_vocoder())
    model = denoiser(pipe)
    if (SHIPPED / "model_index.json").exists():
        model.load_state_dict(denoiser(load_folder(SHIPPED)).state_dict())
        print("denoiser: starts from the shipped weights", flush=True)
    kept = build_scheduler().alphas_cumprod
    weights = (SNR_CAP / (kept / (1 - kept))).clamp(max=1.0)

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        picked = torch.randint(len(mean), (options.batch,), generator=generator)
        spread = torch.randn((options.batch, *mean.shape[1:]), generator=generator)
        latents = (mean[picked] + deviation[picked] * spread) * scale
        dice = random.Random(int(torch.randint(2**62, (), generator=generator)))
        captions = ["" if dice.random() < DROPOUT else caption(sounds[i], dice) for i in picked.tolist()]
        times = torch.randint(len(kept), (options.batch,), generator=generator)
        noise = torch.randn(latents.shape, generator=generator)
        share = kept[times][:, None, None, None]
        noisy = share.sqrt() * latents + (1 - share).sqrt() * noise
        predicted = model["unet"](noisy, times, **encode(pipe, captions)).sample
        return ((predicted - noise).square().mean((1, 2, 3)) * weights[times]).mean()

    train(model, loss_of, options, "denoiser")


if __name__ == "__main__":
    main()
