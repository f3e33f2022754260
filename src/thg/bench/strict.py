"""Strict TOML tables on pydantic: an unknown key, a wrong type or a number that is not finite is an error.

`check` turns pydantic's errors into sentences that name the table, the key, the value and the nearest known word.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from thg.bench.errors import ConfigError
from thg.errors import THGError


class Table(BaseModel):
    """A TOML table: values of exactly the declared types, and no other keys."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )


TableT = TypeVar("TableT", bound=Table)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _as_path(value: Any, info: ValidationInfo) -> Any:
    base = (info.context or {}).get("base", Path())
    return base / Path(value).expanduser() if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Wholes = Annotated[tuple[int, ...], BeforeValidator(_as_tuple)]
FilePath = Annotated[Path, BeforeValidator(_as_path)]
"""Relative to the folder of the configuration."""


def check(table: type[TableT], values: Mapping[str, Any], base: Path, where: str = "") -> TableT:
    """The table with these values. where: its name in errors; base: what its paths are relative to."""
    try:
        return table.model_validate(dict(values), context={"base": base})
    except ValidationError as error:
        raise _translated(error, table, where) from None


def nearest(word: str, options: Iterable[str]) -> str:
    """The end of an error about an unknown word: the option that looks most like it, and all of them."""
    options = sorted(options)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{guess} There are: {', '.join(options)}"


def _translated(error: ValidationError, table: type[BaseModel], where: str) -> THGError:
    details = error.errors(include_url=False)
    for detail in details:
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, THGError):  # raised by our own validator, with a complete message
            return cause
    return ConfigError("; ".join(dict.fromkeys(_sentence(detail, table, where) for detail in details)))


KINDS = {
    "int": "a whole number",
    "float": "a number",
    "string": "a text",
    "bool": "true or false",
    "path": "a path",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
}
LIMITS = {"greater_than_equal": "at least", "greater_than": "above", "less_than_equal": "at most", "less_than": "below"}


def _sentence(detail: ErrorDetails, table: type[BaseModel], where: str) -> str:
    *parents, key = [part for part in detail["loc"] if isinstance(part, str)] or [""]
    place = ".".join([where, *parents] if where else parents)
    name = f"{place}.{key}" if place else key
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        inside = f" in {place}" if place else ""
        return f"unknown key {key!r}{inside}{nearest(key, _table_at(table, parents).model_fields)}"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "literal_error":
        options = [option.strip(" '") for option in str(context["expected"]).replace(" or ", ",").split(",")]
        return f"{name} is {value!r}{nearest(str(value), options)}"
    if kind in LIMITS:
        return f"{name} must be {LIMITS[kind]} {next(iter(context.values()))}, not {value}"
    if kind == "finite_number":
        return f"{name} must be finite, not {value}"
    expected = KINDS.get(kind.partition("_")[0])
    if expected is not None:
        return f"{name} must be {expected}, not {value!r}"
    return f"{name}: {detail['msg']}, not {value!r}"


def _table_at(table: type[BaseModel], parents: list[str]) -> type[BaseModel]:
    """The table in which a key was looked up."""
    for parent in parents:
        inner = table.model_fields[parent].annotation if parent in table.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        table = inner
    return table
