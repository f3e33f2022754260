"""The shipped models compute in ComfyUI what they compute in diffusers: the pictures of these tests are real."""

import torch
from sampling import EMOJI, ksampler, with_thg

from thg.models.emoji_prompts import EMOJI_PROMPTS
from thg.models.judge import EmojiJudge


@torch.no_grad()
def test_eps_in_the_unet(eps):
    x, context, time = torch.randn(2, 4, 8, 8), torch.randn(2, 7, 64), torch.tensor([500.0, 20.0])
    theirs = eps.pipe.unet(x, time, encoder_hidden_states=context).sample
    torch.testing.assert_close(eps.model.model.diffusion_model(x, time, context=context), theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_flow_in_the_mmdit(flow):
    x, context, pooled = torch.randn(2, 4, 8, 8), torch.randn(2, 7, 96), torch.randn(2, 96)
    time = torch.tensor([500.0, 20.0])
    theirs = flow.pipe.transformer(x, context, pooled, time).sample
    ours = flow.model.model.diffusion_model(x, time, context=context, y=pooled)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_emoji_are_what_was_asked_for(emoji):
    judge, captions = EmojiJudge.load(), list(EMOJI_PROMPTS)
    asked = [captions.index(name) for name in EMOJI]
    for model in (emoji.model, with_thg(emoji.model)):
        runs = [ksampler(emoji, model, "dpmpp_2m", "karras", seed=seed) for seed in range(len(EMOJI))]
        pictures = torch.cat([run.pictures for run in runs])
        assert judge.ranks(2 * pictures - 1, asked, captions).tolist() == [0] * len(EMOJI)
