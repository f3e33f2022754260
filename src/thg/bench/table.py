"""Reading one TOML table: typed values by name, and an error for each name that nobody asked for."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thg.bench.errors import ConfigError

_MISSING = object()


class Table:
    """A TOML table that is read once. `where` names it in errors; relative paths are taken from `base`.

    `given`: the values as they are. `asked`: the keys that were read so far.
    """

    def __init__(self, values: Mapping[str, Any], where: str, base: Path) -> None:
        self.given = values
        self._where = where
        self._base = base
        self.asked: list[str] = []

    def has(self, key: str) -> bool:
        return key in self.given

    def text(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, default, str, "a text")

    def flag(self, key: str, default: Any = _MISSING) -> Any:
        return self._get(key, default, bool, "true or false")

    def whole(self, key: str, default: Any = _MISSING, at_least: int = 0) -> Any:
        value = self._get(key, default, int, "a whole number")
        if isinstance(value, int) and key in self.given and value < at_least:
            raise ConfigError(f"{self._name(key)} must be at least {at_least}, not {value}")
        return value

    def number(self, key: str, default: Any = _MISSING) -> Any:
        value = self._get(key, default, (int, float), "a number")
        if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise ConfigError(f"{self._name(key)} must be finite, not {value}")
        return float(value) if key in self.given else value

    def path(self, key: str) -> Path | None:
        value = self._get(key, None, str, "a path")
        return None if value is None else self._base / Path(value).expanduser()

    def texts(self, key: str, default: Any = _MISSING) -> Any:
        return self._tuple(key, default, str, "texts")

    def wholes(self, key: str, default: Any = _MISSING) -> Any:
        return self._tuple(key, default, int, "whole numbers")

    def choice(self, key: str, options: tuple[str, ...], default: Any = _MISSING) -> Any:
        value = self.text(key, default)
        if value is not None and value not in options:
            raise ConfigError(f"{self._name(key)} is {value!r}{nearest(str(value), options)}")
        return value

    def values(self, key: str) -> dict[str, Any]:
        """A sub-table whose keys are free."""
        return dict(self._get(key, {}, dict, "a table"))

    def numbers(self, key: str) -> dict[str, float]:
        """A sub-table of numbers whose keys are free."""
        table = Table(self.values(key), self._name(key), self._base)
        return {name: table.number(name) for name in table.given}

    def table(self, key: str) -> Table:
        return Table(self._get(key, {}, dict, "a table"), self._name(key), self._base)

    def tables(self, key: str) -> list[Table]:
        rows = self._get(key, [], list, "an array of tables")
        if not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{self._name(key)} must be an array of tables: write [[{key}]] before each")
        return [Table(row, f"{self._name(key)} {number}", self._base) for number, row in enumerate(rows, start=1)]

    def close(self) -> None:
        """To be called when everything was read: what is left is an error."""
        for key in self.given:
            if key not in self.asked:
                place = f" in {self._where}" if self._where else ""
                raise ConfigError(f"unknown key {key!r}{place}{nearest(key, self.asked)}")

    def _name(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def _get(self, key: str, default: Any, kind: Any, what: str) -> Any:
        self.asked.append(key)
        value = self.given.get(key, default)
        if value is _MISSING:
            raise ConfigError(f"{self._name(key)} is missing; it must be {what}")
        if key in self.given and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise ConfigError(f"{self._name(key)} must be {what}, not {value!r}")
        return value

    def _tuple(self, key: str, default: Any, kind: type, what: str) -> Any:
        value = self._get(key, default, list, f"a list of {what}")
        if key not in self.given:
            return value
        if any(not isinstance(item, kind) or isinstance(item, bool) for item in value):
            raise ConfigError(f"{self._name(key)} must be a list of {what}, not {value!r}")
        return tuple(value)


def nearest(word: str, options: tuple[str, ...] | list[str]) -> str:
    """The end of an error about an unknown word: the option that looks most like it, and all of them."""
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{guess} There are: {', '.join(sorted(options))}"
