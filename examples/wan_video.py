"""Video: Wan 2.1, whose network is called twice a step.

python examples/wan_video.py
python examples/wan_video.py --shipped   # the small picture model in the package instead
"""

import sys

import torch

import thg

generator = torch.Generator().manual_seed(0)
if "--shipped" in sys.argv:
    pipe = thg.shipped_pipeline("flow")
    thg.enable(pipe)
    pipe("a coat", num_inference_steps=20, guidance_scale=5.0, generator=generator).images[0].save("coat.png")
else:
    from diffusers import WanPipeline
    from diffusers.utils import export_to_video

    pipe = WanPipeline.from_pretrained("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", torch_dtype=torch.bfloat16).to("cuda")
    thg.enable(pipe)
    frames = pipe("a cat walks on the grass", num_frames=81, guidance_scale=5.0, generator=generator).frames[0]
    export_to_video(frames, "cat.mp4", fps=16)
print(thg.summary(pipe))
