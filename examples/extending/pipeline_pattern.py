"""A pipeline of your own: tell thg how it lays out the two branches of its guidance.

thg knows the pipelines of diffusers by name, and never guesses. A class with a sampling loop of its own says which
pattern it follows: `thg.Batched` if both branches go through the network in one call, `thg.Sequential` if it calls the
network twice, the conditional branch first.

python examples/extending/pipeline_pattern.py
"""

import torch
from diffusers import StableDiffusionPipeline

import thg


class ShortPipeline(StableDiffusionPipeline):
    """Text to latents in a few lines. It stacks the conditional half first, unlike Stable Diffusion's own loop."""

    @torch.no_grad()
    def __call__(self, prompt: str, steps: int, guidance_scale: float, seed: int) -> torch.Tensor:
        self._guidance_scale = guidance_scale  # `pipe.guidance_scale` tells thg the w of this run
        cond, uncond = self.encode_prompt(prompt, self.device, 1, True)
        self.scheduler.set_timesteps(steps)  # here a run starts for thg
        channels, size = self.unet.config.in_channels, self.unet.config.sample_size
        x = torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(seed))
        for t in self.scheduler.timesteps:
            e_c, e_u = self.unet(torch.cat([x, x]), t, encoder_hidden_states=torch.cat([cond, uncond])).sample.chunk(2)
            x = self.scheduler.step(e_u + guidance_scale * (e_c - e_u), t, x).prev_sample
        return x


if __name__ == "__main__":
    pipe = ShortPipeline(**thg.shipped_pipeline().components, requires_safety_checker=False)
    plain = pipe("a light dress", 30, 5.0, seed=0)
    try:
        thg.enable(pipe)
    except thg.UnsupportedPipelineError as error:
        print(error)  # its loop is its own, so thg asks
    pattern = thg.Batched(branches=("cond", "uncond"))  # the order along the batch; "uncond" is what leaps leave out

    with thg.enabled(pipe, thg.uniform(every=1), layout=pattern):  # every step: must be plain CFG
        assert torch.allclose(pipe("a light dress", 30, 5.0, seed=0), plain, atol=1e-5)
    with thg.enabled(pipe, thg.uniform(nfe=0.65), layout=pattern):
        fewer = pipe("a light dress", 30, 5.0, seed=0)
        print(thg.summary(pipe))
    print(f"relative difference: {float((fewer - plain).norm() / plain.norm()):.1e}")
