"""Modular Diffusers: thg as the guider of a modular pipeline.

python examples/modular_guider.py
python examples/modular_guider.py --shipped   # with the parts of the small flow model in the package
"""

import sys

import torch
from diffusers import StableDiffusion3AutoBlocks

import thg

guider = thg.TortoiseHareGuidance(guidance_scale=4.0, plan=thg.uniform(nfe=0.65))
size = {}
if "--shipped" in sys.argv:
    pipe = StableDiffusion3AutoBlocks().init_pipeline()
    parts = thg.shipped_pipeline("flow").components
    pipe.update_components(**{k: v for k, v in parts.items() if v is not None and k in pipe.component_names})
    size = {"height": 32, "width": 32}
else:
    pipe = StableDiffusion3AutoBlocks().init_pipeline("stabilityai/stable-diffusion-3.5-medium")
    pipe.load_components(torch_dtype=torch.bfloat16)
    pipe.to("cuda")
pipe.update_components(guider=guider)

call = {"prompt": "a light dress", "negative_prompt": "", "num_inference_steps": 28, **size}
pipe(**call, generator=torch.Generator().manual_seed(0), output="images")[0].save("modular.png")
