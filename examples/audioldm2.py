"""Sound: AudioLDM 2 with 200 steps.

python examples/audioldm2.py [MODEL]
"""

import sys
from pathlib import Path

import torch
from diffusers import AudioLDM2Pipeline

import thg
from thg.files import write_atomically
from thg.media import wav_bytes

model = sys.argv[1] if len(sys.argv) > 1 else "cvssp/audioldm2"
device, dtype = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.float32)
pipe = AudioLDM2Pipeline.from_pretrained(model, torch_dtype=dtype).to(device)

thg.enable(pipe)
sound = pipe(
    "water dripping in a cave",
    num_inference_steps=200,
    guidance_scale=3.5,
    audio_length_in_s=10.24 if device == "cuda" else 0.5,
    generator=torch.Generator().manual_seed(0),
).audios[0]
write_atomically(Path("water.wav"), wav_bytes(sound, rate=16000))
print(thg.summary(pipe))
