"""Stage 2: the judge, a classifier of real pictures, and the borders between the tones."""

import json

import torch
import torch.nn.functional as F

from thg.models.garments import brightness
from thg.models.judge import BORDERS_KEY, JudgeNetwork
from training.data import load_split
from training.latents import tone_borders
from training.loop import parse_options, save_atomically, train


def mirrored(pictures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror half of the pictures, so that the judge does not learn them by heart."""
    chosen = torch.rand(len(pictures), generator=generator) < 0.5
    return torch.where(chosen[:, None, None, None], pictures.flip(3), pictures)


def accuracy(network: JudgeNetwork, pictures: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of pictures recognised."""
    with torch.inference_mode():
        answers = torch.cat([network(batch).argmax(1) for batch in pictures.split(500)])
    return float((answers == labels).float().mean())


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(__doc__, arguments, steps=3200, learning_rate=1.5e-3)
    pictures, labels = load_split(options.data, "train", options.limit)
    torch.manual_seed(options.seed)
    network = JudgeNetwork()

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        picked = torch.randint(len(pictures), (options.batch,), generator=generator)
        return F.cross_entropy(network(mirrored(pictures[picked], generator)), labels[picked])

    averages = train(network, loss_of, options, "judge")
    network.load_state_dict(averages)
    correct = accuracy(network.eval(), *load_split(options.data, "t10k", options.limit))
    print(f"judge: {correct:.2%} of the real test pictures recognised")
    tensors = {name: value.half() for name, value in averages.items()}
    tensors[BORDERS_KEY] = tone_borders(brightness(pictures), labels)
    description = {"description": json.dumps({"test_accuracy": round(correct, 4)})}
    save_atomically(tensors, options.work / "judge.final.safetensors", description)


if __name__ == "__main__":
    main()
