"""Emoji with the small model included in the package, by plain CFG and by thg from the same seeds.

python examples/shipped_emoji.py [PROMPT ...]
"""

import sys
from typing import Any

import torch

import thg
from thg.media import psnr

prompts = sys.argv[1:] or ["red heart", "panda"]
pipe = thg.shipped_pipeline("emoji")  # diffusers.StableDiffusionPipeline
pipe.set_progress_bar_config(disable=True)


def pictures() -> Any:
    seeds = [torch.Generator().manual_seed(number) for number in range(len(prompts))]
    return pipe(prompts, num_inference_steps=30, guidance_scale=5.0, generator=seeds).images


plain = pictures()
thg.enable(pipe)
for prompt, ours, reference in zip(prompts, pictures(), plain, strict=True):
    ours.save(f"{prompt.replace(' ', '_')}.png")
    print(f"{prompt}: {psnr(ours, reference, peak=255):.1f} dB to plain CFG")
print(thg.summary(pipe))
