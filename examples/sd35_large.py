"""Stable Diffusion 3.5 Large with the paper's plan: 28 steps, guidance 3.5, 38 evaluations instead of 56.

python examples/sd35_large.py [MODEL]
"""

import sys

import torch
from diffusers import StableDiffusion3Pipeline

import thg

model = sys.argv[1] if len(sys.argv) > 1 else "stabilityai/stable-diffusion-3.5-large"
device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
pipe = StableDiffusion3Pipeline.from_pretrained(model, torch_dtype=dtype).to(device)

thg.enable(pipe, "sd35-large")
picture = pipe(
    "a single giraffe standing in the middle of tall grass",
    num_inference_steps=28,
    guidance_scale=3.5,
    generator=torch.Generator().manual_seed(0),
).images[0]
picture.save("sd35.png")
print(thg.summary(pipe))
