"""Videos in a comparison: four of their frames as one picture, their distance, and their files."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from thg.cli.files import frames_of
from thg.media import psnr

FRAMES_SHOWN = 4


def four_frames(items: list[Any]) -> list[Image.Image]:
    """For each video the first frame, the last, and two between them, as a square."""
    return [_square(frames_of(item)) for item in items]


def _square(frames: list[Image.Image]) -> Image.Image:
    chosen = [frames[round(i * (len(frames) - 1) / (FRAMES_SHOWN - 1))] for i in range(FRAMES_SHOWN)]
    width, height = chosen[0].size
    page = Image.new("RGB", (2 * width, 2 * height))
    for i, frame in enumerate(chosen):
        page.paste(frame, (i % 2 * width, i // 2 * height))
    return page


def video_psnr(video: Any, reference: Any) -> float:
    """PSNR over all frames."""
    made, wanted = (np.stack([np.asarray(frame) for frame in frames_of(item)]) for item in (video, reference))
    return psnr(made, wanted, peak=255)
