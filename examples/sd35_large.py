"""Stable Diffusion 3.5 Large with the paper's plan: 28 steps, guidance 3.5, 38 evaluations instead of 56.

python examples/sd35_large.py
python examples/sd35_large.py --shipped   # the small flow model in the package instead
"""

import sys

import torch

import thg

if "--shipped" in sys.argv:
    pipe, prompt = thg.shipped_pipeline("flow"), "a light dress"
else:
    from diffusers import StableDiffusion3Pipeline

    pipe = StableDiffusion3Pipeline.from_pretrained(
        "stabilityai/stable-diffusion-3.5-large", torch_dtype=torch.bfloat16
    ).to("cuda")
    prompt = "a single giraffe standing in the middle of tall grass"

thg.enable(pipe, "sd35-large")
picture = pipe(prompt, num_inference_steps=28, guidance_scale=3.5, generator=torch.Generator().manual_seed(0)).images[0]
picture.save("sd35.png")
print(thg.summary(pipe))
