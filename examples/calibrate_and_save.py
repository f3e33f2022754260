"""Measure where the guidance of a model may leap, keep it, and use it.

python examples/calibrate_and_save.py             # Stable Diffusion 1.5, from the hub
python examples/calibrate_and_save.py --shipped   # the small model in the package
"""

import sys

import torch

import thg

if "--shipped" in sys.argv:
    pipe, prompts, steps = thg.shipped_pipeline(), ["a bag", "a dark coat"], 10
else:
    from diffusers import StableDiffusionPipeline

    pipe = StableDiffusionPipeline.from_pretrained("stable-diffusion-v1-5/stable-diffusion-v1-5").to("cuda")
    prompts, steps = ["a group of zebras grazing in the grass", "two cows on a hill above a valley"], 50

profile = thg.calibrate(pipe, prompts, steps=steps, guidance_scale=7.5)
profile.save("profile.json", force=True)

thg.enable(pipe, thg.Profile.load("profile.json").planner(nfe=0.65))
pipe(prompts[0], num_inference_steps=steps, guidance_scale=7.5, generator=torch.Generator().manual_seed(0))
print(thg.summary(pipe))
