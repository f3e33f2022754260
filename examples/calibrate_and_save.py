"""Calibrate a model, save its profile, and sample with a plan made from it.

python examples/calibrate_and_save.py [MODEL [STEPS]]   # Stable Diffusion 1.5, from the hub, with 50 steps
python examples/calibrate_and_save.py --shipped         # the small model in the package
"""

import sys

import torch
from diffusers import StableDiffusionPipeline

import thg

model = sys.argv[1] if len(sys.argv) > 1 else "stable-diffusion-v1-5/stable-diffusion-v1-5"
device, dtype = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.float32)
if model == "--shipped":
    pipe, prompts, steps = thg.shipped_pipeline(device=device), ["a bag", "a dark coat"], 10
else:
    pipe = StableDiffusionPipeline.from_pretrained(model, torch_dtype=dtype).to(device)
    prompts = ["a group of zebras grazing in the grass", "two cows on a hill above a valley"]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 50

profile = thg.calibrate(pipe, prompts, steps=steps, guidance_scale=7.5)
profile.save("profile.json", force=True)

thg.enable(pipe, thg.Profile.load("profile.json").planner(nfe=0.65))
pipe(prompts[0], num_inference_steps=steps, guidance_scale=7.5, generator=torch.Generator().manual_seed(0))
print(thg.summary(pipe))
