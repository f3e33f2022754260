"""Stable Diffusion XL in half precision with CPU offload, at 60 % of plain CFG's evaluations.

python examples/sdxl.py
python examples/sdxl.py --shipped   # the small model in the package instead
"""

import sys

import torch

import thg

if "--shipped" in sys.argv:
    pipe, prompt = thg.shipped_pipeline(), "a light dress"
else:
    from diffusers import StableDiffusionXLPipeline

    pipe = StableDiffusionXLPipeline.from_pretrained(
        "stabilityai/stable-diffusion-xl-base-1.0", torch_dtype=torch.float16, variant="fp16"
    )
    pipe.enable_model_cpu_offload()
    prompt = "a lighthouse in a storm, oil on canvas"

thg.enable(pipe, thg.tapered(0.6))
pipe(prompt, num_inference_steps=40, generator=torch.Generator().manual_seed(0)).images[0].save("sdxl.png")
print(thg.summary(pipe))
