"""Stable Diffusion XL in half precision with CPU offload, as close to plain CFG as 3 %.

python examples/sdxl.py [MODEL]
"""

import sys

import torch
from diffusers import StableDiffusionXLPipeline

import thg

model = sys.argv[1] if len(sys.argv) > 1 else "stabilityai/stable-diffusion-xl-base-1.0"
cuda = torch.cuda.is_available()
pipe = StableDiffusionXLPipeline.from_pretrained(
    model, variant="fp16", torch_dtype=torch.float16 if cuda else torch.float32
)
if cuda:
    pipe.enable_model_cpu_offload()

thg.enable(pipe, thg.within(0.03))
picture = pipe(
    "a lighthouse in a storm, oil on canvas", num_inference_steps=40, generator=torch.Generator().manual_seed(0)
).images[0]
picture.save("sdxl.png")
print(thg.summary(pipe))
