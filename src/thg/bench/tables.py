"""Strict TOML tables as dataclasses: an unknown key, a wrong type or a number that is not finite is an error.

pydantic validates the dataclasses; `validated` turns its errors into sentences that name the table, the key, the value
and the nearest known word. A value may name a class in a file: "my_methods.py:Fading".
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from thg.errors import THGError


class ConfigError(THGError, ValueError):
    """An invalid benchmark configuration."""


class Table:
    """Base of the dataclasses that are tables of a configuration."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


def _from_base(path: Path, info: ValidationInfo) -> Path:
    base: Path = (info.context or {}).get("base", Path())
    return base / path.expanduser()


FilePath = Annotated[Path, AfterValidator(_from_base)]
"""Relative to the folder of the configuration."""

TableT = TypeVar("TableT")


def validated(table: type[TableT], values: Mapping[str, Any], base: Path, where: str = "") -> TableT:
    """The dataclass with these values. where: its name in errors; base: what its paths are relative to."""
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where + '.' if where else ''}{key} must be finite, not {value}")
    try:
        # as JSON, in which a list may be a tuple and a text a path, but a text is never a number
        text = json.dumps(values, default=str)
        return TypeAdapter(table).validate_json(text, strict=True, context={"base": base})
    except ValidationError as error:
        details = error.errors(include_url=False)
        causes = (detail.get("ctx", {}).get("error") for detail in details)
        if ours := next((cause for cause in causes if isinstance(cause, THGError)), None):
            raise ours from None  # raised by a dataclass, with a complete message
        raise ConfigError("; ".join(dict.fromkeys(_sentence(detail, table, where) for detail in details))) from None


def keys(table: Any) -> list[str]:
    """The keys of a table: the fields that its dataclass takes."""
    return [field.name for field in fields(table) if field.init]


def digest(what: Mapping[str, Any]) -> str:
    """Sixteen hex digits of a value."""
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def nearest(word: str, options: Iterable[str]) -> str:
    """The end of an error about an unknown word: the option that looks most like it, and all of them."""
    options = sorted(options)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}? There are" if close else "; there are"
    return f"{guess}: {', '.join(options)}"


def check_keys(given: Iterable[str], known: Collection[str], table: str) -> None:
    """Raises an error for the first key that a table does not have."""
    for key in given:
        if key not in known:
            raise ConfigError(unknown(key, table, known))


def unknown(key: str, table: str, known: Iterable[str]) -> str:
    return f"unknown key {key!r}{f' in {table}' if table else ''}{nearest(key, known)}"


KINDS = {
    **{"int": "a whole number", "float": "a number", "string": "a text", "bool": "true or false", "path": "a path"},
    **{"tuple": "a list", "list": "a list", "dict": "a table", "dataclass": "a table"},
}
LIMITS = {"greater_than_equal": "at least", "greater_than": "above", "less_than_equal": "at most", "less_than": "below"}


def _sentence(detail: ErrorDetails, table: type, where: str) -> str:
    *parents, key = [part for part in detail["loc"] if isinstance(part, str)] or [""]
    table_name = ".".join([where, *parents] if where else parents)
    name = f"{table_name}.{key}" if table_name else key
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "unexpected_keyword_argument":
        for parent in parents:  # the table in which the key was looked up
            table = get_type_hints(table)[parent]
        return unknown(key, table_name, keys(table))
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
    return f"{name} must be {expected}, not {value!r}" if expected else f"{name}: {detail['msg']}, not {value!r}"


# -- classes in files


def is_file(name: str) -> bool:
    return ".py:" in name


def from_file(name: str, base: Path) -> Any:
    """The object that a name such as "folder/file.py:Class" stands for. base: what the path is relative to."""
    path, _, attribute = name.rpartition(":")
    module = _module((base / Path(path).expanduser()).resolve())
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if inspect.isclass(value) and not key.startswith("_")]
        raise ConfigError(f"{module.__file__} has no {attribute!r}; it has the classes {', '.join(known) or '(none)'}")
    return getattr(module, attribute)


@cache
def _module(path: Path) -> ModuleType:
    name = f"thg_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no file {path}; write policy or metric as file.py:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up annotations
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported ({type(error).__name__}: {error})") from error
    return module


def code_digest(found: Any) -> str:
    """Of the file that a class or function comes from; empty for those of thg."""
    module = inspect.getmodule(found)
    if module is None or module.__name__.partition(".")[0] == "thg" or not module.__file__:
        return ""
    return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()[:16]
