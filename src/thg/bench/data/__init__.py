"""What the benchmark reads: prompts, reference pictures and sounds, and statistics computed from them."""

from thg.bench.data.errors import DataError
from thg.bench.data.prompts import hub_prompts, read_prompts
from thg.bench.data.references import PictureFolder, SoundFolder
from thg.bench.data.statistics import read_statistics, write_statistics

__all__ = [
    "DataError",
    "PictureFolder",
    "SoundFolder",
    "hub_prompts",
    "read_prompts",
    "read_statistics",
    "write_statistics",
]
