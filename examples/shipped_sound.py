"""Sound with the small model included in the package: notes, chords, melodies and drum patterns of 1.28 s.

python examples/shipped_sound.py
"""

from pathlib import Path

import torch

import thg
from thg.files import write_atomically
from thg.media import wav_bytes
from thg.models.pretrained import sampling_rate

PROMPTS = ["a loud low trumpet note", "a slow loud high marimba melody", "a fast loud hi-hat pattern"]

pipe = thg.shipped_pipeline("audio")  # diffusers.AudioLDM2Pipeline
thg.enable(pipe)
sounds = pipe(
    PROMPTS,
    num_inference_steps=50,
    guidance_scale=3.5,
    generator=[torch.Generator().manual_seed(number) for number in range(len(PROMPTS))],
).audios
for prompt, sound in zip(PROMPTS, sounds, strict=True):
    write_atomically(Path(f"{prompt.replace(' ', '_')}.wav"), wav_bytes(sound, rate=sampling_rate(pipe)))
print(thg.summary(pipe))
