"""Several GPUs: each process makes its share of the prompts; a picture does not depend on how many there are.

accelerate launch --num_processes 4 examples/multi_gpu.py [MODEL]     # reads prompts.txt, one per line
accelerate launch --num_processes 2 --cpu examples/multi_gpu.py --shipped
"""

import sys
from pathlib import Path

import torch
from accelerate import PartialState
from diffusers import StableDiffusionPipeline

import thg

model = sys.argv[1] if len(sys.argv) > 1 else "stable-diffusion-v1-5/stable-diffusion-v1-5"
state = PartialState(cpu=not torch.accelerator.is_available())
dtype = torch.float32 if state.device.type == "cpu" else torch.float16
if model == "--shipped":
    pipe, steps = thg.shipped_pipeline(device=state.device), 10
    prompts = ["a bag", "a dark coat", "a light dress", "a sneaker"]
else:
    pipe = StableDiffusionPipeline.from_pretrained(model, torch_dtype=dtype).to(state.device)
    prompts, steps = Path("prompts.txt").read_text().splitlines(), 50

thg.enable(pipe)
with state.split_between_processes(list(enumerate(prompts))) as share:
    for index, prompt in share:
        generator = torch.Generator().manual_seed(index)
        pipe(prompt, num_inference_steps=steps, generator=generator).images[0].save(f"{index:05d}.png")
        print(f"process {state.process_index}: {prompt}, {thg.summary(pipe).nfe} evaluations")
