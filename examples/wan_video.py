"""Video: Wan 2.1, whose network is called twice a step.

python examples/wan_video.py [MODEL]
"""

import sys

import torch
from diffusers import WanPipeline
from diffusers.utils import export_to_gif

import thg

model = sys.argv[1] if len(sys.argv) > 1 else "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
if torch.cuda.is_available():
    device, dtype, size = "cuda", torch.bfloat16, {"height": 480, "width": 832, "num_frames": 81}
else:  # a CPU would take hours for the full size
    device, dtype, size = "cpu", torch.float32, {"height": 32, "width": 32, "num_frames": 5}
pipe = WanPipeline.from_pretrained(model, torch_dtype=dtype).to(device)

thg.enable(pipe)
frames = pipe(
    "a cat walks on the grass",
    guidance_scale=5.0,
    generator=torch.Generator().manual_seed(0),
    output_type="pil",
    **size,
).frames[0]
export_to_gif(frames, "cat.gif", fps=16)
print(thg.summary(pipe))
