"""Where the metrics' networks are, from the names that a configuration uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thg.bench.config import BenchConfig
from thg.bench.metrics import Sources

FILES = ("inception", "lpips", "vggish", "image_reward")
"""Networks that are files; the others are hub ids or folders."""


def metric_sources(config: BenchConfig) -> Sources:
    values: dict[str, Any] = {
        name: Path(value).expanduser() if name in FILES else value for name, value in config.networks.items()
    }
    return Sources(**values)
