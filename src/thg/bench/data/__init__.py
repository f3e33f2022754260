"""Reference pictures and sounds, and statistics computed from them."""

from thg.bench.data.references import read_references
from thg.bench.data.statistics import read_statistics, write_statistics

__all__ = ["read_references", "read_statistics", "write_statistics"]
