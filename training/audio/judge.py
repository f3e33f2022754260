"""Stage 3: the judge of sounds, a classifier of rendered sounds."""

import json

import torch
import torch.nn.functional as F

from thg.models.judge import HEADS, SoundJudge, SoundJudgeNetwork
from training.audio.sounds import NO_REGISTER, WORK, load_sounds, log_mels, sound_of
from training.loop import parse_options, save_atomically, train

NOISE = 0.15
"""Deviation of the noise on spectrograms, and of that on their level, so that the judge does not learn by heart."""


def disturbed(spectrograms: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Spectrograms with some noise."""
    levels = torch.randn((len(spectrograms), 1, 1), generator=generator)
    return spectrograms + NOISE * (levels + torch.randn(spectrograms.shape, generator=generator))


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(__doc__, arguments, steps=1500, learning_rate=1.5e-3, work=WORK)
    waves, sounds = load_sounds(options.work)
    spectrograms = log_mels(waves)
    torch.manual_seed(options.seed)
    network = SoundJudgeNetwork()

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        picked = torch.randint(len(spectrograms), (options.batch,), generator=generator)
        logits = network(disturbed(spectrograms[picked], generator)).split(list(HEADS.values()), dim=1)
        losses = [
            F.cross_entropy(part, answers, ignore_index=NO_REGISTER)
            for part, answers in zip(logits, sounds[picked].T, strict=True)
        ]
        return torch.stack(losses).sum()

    averages = train(network, loss_of, options, "judge")
    network.load_state_dict(averages)
    test_waves, test_sounds = load_sounds(options.work, "test")
    verdict = SoundJudge(network)(test_waves)
    right = verdict.right([sound_of(row) for row in test_sounds.tolist()])
    accuracy = {name: round(float(values.float().mean()), 4) for name, values in right.items()}
    print(f"judge: {accuracy} of {len(test_waves)} rendered test sounds recognised")
    tensors = {name: value.half() for name, value in averages.items()}
    save_atomically(tensors, options.work / "judge.final.safetensors", {"description": json.dumps(accuracy)})


if __name__ == "__main__":
    main()
