"""A benchmark as a value: read from one TOML file, checked as a whole before anything runs.

An unknown key is an error that names the key and the nearest known one. Relative paths are relative to the file.
"""

from thg.bench.config.loading import SHIPPED_CONFIG, load_config, override, parse_config
from thg.bench.config.schema import BenchConfig, Method, Model, Prompts, References, Sheet, Storage

__all__ = [
    "SHIPPED_CONFIG",
    "BenchConfig",
    "Method",
    "Model",
    "Prompts",
    "References",
    "Sheet",
    "Storage",
    "load_config",
    "override",
    "parse_config",
]
