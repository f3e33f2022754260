"""Reading a benchmark from its TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from thg.bench.config.schema import BenchConfig
from thg.bench.errors import ConfigError
from thg.bench.strict import check
from thg.errors import THGError

SHIPPED_CONFIG = Path(__file__).parent / "shipped.toml"
"""What `thg bench` runs without arguments."""


def load_config(path: Path) -> BenchConfig:
    """Reads and checks a TOML file; errors name it."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    try:
        return parse_config(values, path.resolve().parent)
    except THGError as error:
        raise type(error)(f"{path}: {error}") from None


def parse_config(values: dict[str, Any], base: Path) -> BenchConfig:
    """Checks the values of a TOML file. `base`: what its relative paths are relative to."""
    config = check(BenchConfig, values, base)
    config._source, config._base = values, base
    return config


def override(config: BenchConfig, *, keep: str | None = None, **changes: int | None) -> BenchConfig:
    """The same benchmark with some of count, seed, batch_size and keep changed; None leaves a value as it is."""
    given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    if keep is not None:
        given["storage"] = {**config.source.get("storage", {}), "keep": keep}
    return parse_config({**config.source, **given}, config.base)
