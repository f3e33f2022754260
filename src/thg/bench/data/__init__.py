"""The benchmark's input data: prompts, reference pictures and sounds, and statistics computed from them."""

from thg.bench.data.references import read_references
from thg.bench.data.statistics import read_statistics, write_statistics
from thg.prompts import DataError, hub_prompts, paired_files, read_prompts

__all__ = [
    "DataError",
    "hub_prompts",
    "paired_files",
    "read_prompts",
    "read_references",
    "read_statistics",
    "write_statistics",
]
