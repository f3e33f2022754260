"""A pipeline of your own: the default needs nothing, and a plan of the guidance term the layout of its branches.

The layout is checked at the first guided step of each run: the input of `scheduler.step` shows which branch is which.
If it is wrong, the run is plain CFG, and the summary says so.

python examples/extending/pipeline_pattern.py
"""

import torch
from diffusers import StableDiffusionPipeline

import thg


class ShortPipeline(StableDiffusionPipeline):
    """Text to latents in a few lines. It stacks the conditional half first, unlike Stable Diffusion's own loop."""

    @torch.no_grad()
    def __call__(self, prompt: str, steps: int, guidance_scale: float, seed: int) -> torch.Tensor:
        cond, uncond = self.encode_prompt(prompt, self.device, 1, True)
        self.scheduler.set_timesteps(steps)
        channels, size = self.unet.config.in_channels, self.unet.config.sample_size
        x = torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(seed))
        for t in self.scheduler.timesteps:
            e_c, e_u = self.unet(torch.cat([x, x]), t, encoder_hidden_states=torch.cat([cond, uncond])).sample.chunk(2)
            x = self.scheduler.step(e_u + guidance_scale * (e_c - e_u), t, x).prev_sample
        return x


if __name__ == "__main__":
    pipe = ShortPipeline(**thg.shipped_pipeline().components, requires_safety_checker=False)
    plain = pipe("a light dress", 30, 5.0, seed=0)
    layout = thg.Batched(branches=("cond", "uncond"))

    with thg.enabled(pipe, thg.uniform(every=1), layout=layout):  # every step: must be plain CFG
        assert torch.allclose(pipe("a light dress", 30, 5.0, seed=0), plain, atol=1e-5)
    with thg.enabled(pipe, thg.uniform(nfe=0.65), layout=layout):
        fewer = pipe("a light dress", 30, 5.0, seed=0)
        print(thg.summary(pipe))  # "layout: one call: cond, uncond, w = 5"
    with thg.enabled(pipe, thg.uniform(nfe=0.65), layout=thg.Batched()):  # the other order: noticed, and plain CFG
        assert torch.equal(pipe("a light dress", 30, 5.0, seed=0), plain)
        print(thg.summary(pipe).note)
    print(f"relative difference: {float((fewer - plain).norm() / plain.norm()):.1e}")
