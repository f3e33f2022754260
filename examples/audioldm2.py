"""Sound: AudioLDM 2 with 200 steps.

python examples/audioldm2.py
python examples/audioldm2.py --shipped   # the small picture model in the package instead
"""

import sys
from pathlib import Path

import torch

import thg

generator = torch.Generator().manual_seed(0)
if "--shipped" in sys.argv:
    pipe = thg.shipped_pipeline()
    thg.enable(pipe, thg.tapered(0.6))
    pipe("a bag", num_inference_steps=20, guidance_scale=3.5, generator=generator).images[0].save("bag.png")
else:
    from diffusers import AudioLDM2Pipeline

    from thg.cli.files import save_sound

    pipe = AudioLDM2Pipeline.from_pretrained("cvssp/audioldm2", torch_dtype=torch.float16).to("cuda")
    thg.enable(pipe, thg.tapered(0.6))
    sound = pipe("water dripping in a cave", num_inference_steps=200, guidance_scale=3.5, generator=generator).audios[0]
    save_sound(Path("water.wav"), sound, rate=16000)
print(thg.summary(pipe))
