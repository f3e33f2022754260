"""One line on a Stable Diffusion pipeline.

python examples/minimal.py             # Stable Diffusion 1.5, from the hub, on a GPU if there is one
python examples/minimal.py --shipped   # the small model in the package, offline
"""

import sys

import torch

import thg

if "--shipped" in sys.argv:
    pipe, prompt = thg.shipped_pipeline(), "a dark ankle boot"
else:
    from diffusers import StableDiffusionPipeline

    device = "cuda" if torch.cuda.is_available() else "cpu"
    pipe = StableDiffusionPipeline.from_pretrained("stable-diffusion-v1-5/stable-diffusion-v1-5").to(device)
    prompt = "a photograph of a red bicycle"

thg.enable(pipe)
pipe(prompt, num_inference_steps=50, generator=torch.Generator().manual_seed(0)).images[0].save("minimal.png")
print(thg.summary(pipe))
