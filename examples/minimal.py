"""One line on a Stable Diffusion pipeline.

python examples/minimal.py [MODEL]     # Stable Diffusion 1.5 from the hub, on a GPU if there is one
python examples/minimal.py --shipped   # the small model in the package, offline
"""

import sys

import torch
from diffusers import StableDiffusionPipeline

import thg

model = sys.argv[1] if len(sys.argv) > 1 else "stable-diffusion-v1-5/stable-diffusion-v1-5"
device, dtype = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.float32)
if model == "--shipped":
    pipe, prompt = thg.shipped_pipeline("emoji", device=device), "a purple fox"
else:
    pipe = StableDiffusionPipeline.from_pretrained(model, torch_dtype=dtype).to(device)
    prompt = "a photograph of a red bicycle"

thg.enable(pipe)
pipe(prompt, num_inference_steps=50, generator=torch.Generator().manual_seed(0)).images[0].save("minimal.png")
print(thg.summary(pipe))
