"""Stage 2: the judge, a classifier of real pictures, and the borders between the tones."""

import json

import torch
import torch.nn.functional as F

from thg.models.garments import brightness
from thg.models.judge import BORDERS_KEY, JudgeNetwork
from training.data import load_split
from training.latents import tone_borders
from training.loop import parse_options, save_atomically, train


def varied(pictures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror half of the pictures and move the batch by up to two pixels, so that the judge does not learn by heart."""
    mirrored = torch.rand(len(pictures), generator=generator) < 0.5
    pictures = torch.where(mirrored[:, None, None, None], pictures.flip(3), pictures)
    down, right = (torch.randint(5, (2,), generator=generator) - 2).tolist()
    return pictures.roll((down, right), dims=(2, 3))


def accuracy(network: JudgeNetwork, pictures: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of pictures recognised."""
    with torch.inference_mode():
        answers = torch.cat([network(batch).argmax(1) for batch in pictures.split(500)])
    return float((answers == labels).float().mean())


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(__doc__, arguments, steps=4000, learning_rate=2e-3)
    pictures, labels = load_split(options.data, "train", options.limit)
    torch.manual_seed(options.seed)
    network = JudgeNetwork()

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        picked = torch.randint(len(pictures), (options.batch,), generator=generator)
        return F.cross_entropy(network(varied(pictures[picked], generator)), labels[picked], label_smoothing=0.05)

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
