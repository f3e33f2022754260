"""Turns the plain `name: description` lines in docstrings into lists for the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

ITEM = re.compile(r"^ *(?:- )?(`?[A-Za-z_]\w*`?(?:, `?[A-Za-z_]\w*`?)*): (.*)$")


class PlainDocstrings(griffe.Extension):
    """Rewrites each docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None and isinstance(obj, griffe.Class | griffe.Function):
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with its `name: ...` lines as list items; everything else is unchanged."""
    lines: list[str] = []
    indent: int | None = None  # of the items of the current list
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        item = ITEM.match(line)
        if item and (indent is None or depth == indent):
            if indent is None and lines and lines[-1]:
                lines.append("")
            indent = depth
            names = ", ".join(f"`{name.strip('` ')}`" for name in item[1].split(","))
            lines.append(f"- {names}: {item[2]}")
        elif indent is not None and line.strip() and depth > indent:
            lines.append(f"  {line.strip()}")
        else:
            if indent is not None and line.strip():
                lines.append("")
            indent = None
            lines.append(line)
    return "\n".join(lines)
