"""Stage 5: the vocoder, a small HiFi-GAN from log-mel spectrograms to waves, trained with spectral losses.

There is no discriminator. Half of the spectrograms have gone through the autoencoder, as those of the pipeline have.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

from thg.models.sounds import FRAMES, HOP, MELS, SAMPLING_RATE, log_mel
from training.audio.shipped import start_from
from training.audio.sounds import WORK, load_sounds, log_mels
from training.loop import Options, option_parser, train

SEGMENT = 32
"""Frames of a training segment."""
MEL_WEIGHT = 8.0
"""Of the difference of the log-mels, beside the spectra of finer resolution."""
WINDOWS = (256, 512, 1024, 2048)
"""Of the spectra that are compared, in samples."""
SMALLEST = 1e-3


@dataclass(frozen=True)
class VocoderOptions(Options):
    """bfloat16: for the network's products; the losses are in single precision."""

    bfloat16: bool


def build_vocoder() -> SpeechT5HifiGan:
    """The untrained network; the product of its rates is the hop of the spectrogram."""
    config = SpeechT5HifiGanConfig(
        model_in_dim=MELS,
        sampling_rate=SAMPLING_RATE,
        upsample_initial_channel=256,
        upsample_rates=[5, 4, 4, 4],
        upsample_kernel_sizes=[11, 8, 8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
        normalize_before=False,
    )
    network = SpeechT5HifiGan(config)
    _keep_variance(network)
    return network


def _keep_variance(network: SpeechT5HifiGan) -> None:
    """Initial weights that keep the variance from layer to layer; those of the class would start in silence."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv1d):
            nn.init.normal_(layer.weight, std=(layer.in_channels * layer.kernel_size[0]) ** -0.5)
        elif isinstance(layer, nn.ConvTranspose1d):
            taps = layer.kernel_size[0] / layer.stride[0]
            nn.init.normal_(layer.weight, std=(2.0 / (layer.in_channels * taps)) ** 0.5)
        if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    with torch.no_grad():
        for block in network.resblocks:
            for layer in block.convs2:
                layer.weight.mul_(0.3)
        network.conv_post.weight.mul_(0.1)


def spectral_loss(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Relative and logarithmic differences of the magnitudes at several resolutions, and of the log-mels."""
    total = MEL_WEIGHT * (log_mel(made) - log_mel(real)).abs().mean()
    for window in WINDOWS:
        shape = torch.hann_window(window)
        scale = 2.0 / float(shape.sum())
        ours, theirs = (
            torch.stft(wave, window, window // 4, window=shape, return_complex=True).abs() * scale
            for wave in (made, real)
        )
        distance = (ours - theirs).norm(dim=(1, 2)) / theirs.norm(dim=(1, 2)).clamp(min=SMALLEST)
        logarithmic = ((ours + SMALLEST).log() - (theirs + SMALLEST).log()).abs().mean()
        total = total + (distance.mean() + logarithmic) / len(WINDOWS)
    return total


def spectrograms(work: Path, waves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Those of the waves, and if stage 4 has run those that went through the autoencoder."""
    own = log_mels(waves)
    file = work / "restored.safetensors"
    return (own, load_file(file)["spectrograms"].float()) if file.exists() else (own,)


def main(arguments: list[str] | None = None) -> None:
    parser = option_parser(__doc__ or "", steps=20_000, learning_rate=1e-3, work=WORK)
    parser.add_argument("--bfloat16", action="store_true", help="quicker on a CPU that has it (avx512_bf16)")
    options = VocoderOptions(**vars(parser.parse_args(arguments)))
    waves, _ = load_sounds(options.work)
    sources = spectrograms(options.work, waves)
    torch.manual_seed(options.seed)
    network = build_vocoder()
    start_from(network, "vocoder")

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        mels, real = [], []
        for number in range(options.batch):
            source = sources[number % len(sources)]
            index = int(torch.randint(len(source), (), generator=generator))
            start = int(torch.randint(FRAMES - SEGMENT + 1, (), generator=generator))
            mels.append(source[index, start : start + SEGMENT])
            real.append(waves[index, start * HOP : (start + SEGMENT) * HOP])
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
            made = network(torch.stack(mels))
        return spectral_loss(made.float(), torch.stack(real))

    train(network, loss_of, options, "vocoder")


if __name__ == "__main__":
    main()
