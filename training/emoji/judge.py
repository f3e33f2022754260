"""Stage 2: the judge, which learns from real pictures, held-out combinations included, which caption fits which."""

import random

import torch
import torch.nn.functional as F

from thg.models.judge import EmojiJudge, EmojiJudgeNetwork
from training.emoji.batches import emoji_tokenizer, family_weights
from training.emoji.captions import caption
from training.emoji.data import Scope, as_floats, load_emoji
from training.loop import Options, option_parser, save_atomically, train

JUDGE_SCOPE: Scope = "all"


def disturbed(pictures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Pictures moved, scaled, blurred and with noise, so that the judge does not look at single pixels."""
    count = len(pictures)
    scale = 1.0 + 0.12 * torch.randn(count, generator=generator).clamp(-2, 2)
    shift = 0.06 * torch.randn((count, 2), generator=generator)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = matrix[:, 1, 1] = scale
    matrix[:, :, 2] = shift
    grid = F.affine_grid(matrix, list(pictures.shape), align_corners=False)
    moved = F.grid_sample(pictures - 1.0, grid, align_corners=False) + 1.0
    blurred = F.avg_pool2d(moved, 3, stride=1, padding=1, count_include_pad=False)
    share = torch.rand((count, 1, 1, 1), generator=generator)
    noise = 0.15 * torch.rand((count, 1, 1, 1), generator=generator) * torch.randn(moved.shape, generator=generator)
    return (torch.lerp(moved, blurred, share) + noise).clamp(-1, 1)


def main(arguments: list[str] | None = None) -> None:
    parser = option_parser(__doc__, steps=2000, learning_rate=1.5e-3)
    parser.set_defaults(batch=32, checkpoint_every=100)
    options = Options(**vars(parser.parse_args(arguments)))
    torch.set_num_threads(options.threads)
    emoji, pictures = load_emoji(JUDGE_SCOPE)
    tokenizer = emoji_tokenizer()
    torch.manual_seed(options.seed)
    network = EmojiJudgeNetwork(len(tokenizer), tokenizer.pad_token_id)
    judge = EmojiJudge(network, tokenizer)
    network.train().requires_grad_(True)
    weights = family_weights(emoji)
    names = judge.tokens([one.full_name for one in emoji])

    def loss_of(generator: torch.Generator) -> torch.Tensor:
        picked = torch.multinomial(weights, options.batch, generator=generator)
        dice = random.Random(int(torch.randint(2**62, (), generator=generator)))
        tokens = names.clone()
        tokens[picked] = judge.tokens([caption(emoji[i], dice) or emoji[i].full_name for i in picked.tolist()])
        seen = network.of_pictures(disturbed(as_floats(pictures[picked]), generator))
        logits = network.log_scale.exp() * seen @ network.of_captions(tokens).T
        return F.cross_entropy(logits, picked)

    average = train(network, loss_of, options, "emoji_judge")
    network.load_state_dict(average)
    final = EmojiJudge(network, tokenizer)
    ranks = final.ranks(as_floats(pictures), list(range(len(emoji))), [one.full_name for one in emoji])
    print(f"emoji_judge: ranks {(ranks == 0).float().mean():.1%} of {len(emoji)} real pictures' names first")
    halves = {name: tensor.half() for name, tensor in average.items()}
    save_atomically(halves, options.work / "emoji_judge.final.safetensors")


if __name__ == "__main__":
    main()
