"""Prompts from files: csv, tsv, jsonl or txt, and from datasets of the hub.

Tables are read as by Python's csv module, with two differences that the public prompt files need:

- A quote opens a quoted field only if its partner closes the field. `"Head shot" of a zebra` is text with quotes in it.
- A file whose header is one column has no delimiter, so unquoted commas in its captions are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from thg.distribution import missing
from thg.errors import THGError

USUAL_COLUMNS = ("prompt", "caption", "text")
"""Used (case-insensitively) if no column is named."""
LINE_END = r"\r\n|\r|\n"
DELIMITERS = {".csv": ",", ".tsv": "\t"}


class DataError(THGError, ValueError):
    """A prompt file, a folder of references or a statistics file that cannot be used."""


def read_prompts(path: str | Path, column: str | None = None, count: int | None = None) -> list[str]:
    """The prompts of a file, in its order, without surrounding whitespace; empty ones are skipped.

    path: .csv and .tsv have a header; .jsonl has one object (or string) per line; .txt has one prompt per line.
    column: the column or key; by default the only one, or the one named prompt, caption or text.
    count: use only the first ones; an error if there are fewer. Default: all.
    """
    path = Path(path)
    text = _read_text(path)
    if path.suffix.lower() in DELIMITERS:
        columns, rows = read_table(text, DELIMITERS[path.suffix.lower()], str(path))
        chosen = choose_column(columns, column, str(path))
        texts: Iterable[str] = (row.get(chosen, "") for row in rows)
    elif path.suffix.lower() == ".jsonl":
        texts = _from_jsonl(text, column, path)
    elif path.suffix.lower() == ".txt":
        if column is not None:
            raise DataError(f"{path} is plain text and has no columns: leave column={column!r} out")
        texts = re.split(LINE_END, text)
    else:
        raise DataError(f"{path} ends in {path.suffix!r}: prompts are read from .csv, .tsv, .jsonl or .txt")
    return take(texts, count, str(path))


def paired_files(path: str | Path, column: str | None, template: str, count: int) -> list[str]:
    """The names of the references that belong to the first `count` prompts of a file.

    template: with columns of the file in braces, such as "{file_name}" or "{youtube_id}_{start_time}.wav".
    """
    path = Path(path)
    if path.suffix.lower() not in DELIMITERS:
        raise DataError(f"{path}: pairs are read from .csv and .tsv files, whose columns name the references")
    columns, rows = read_table(_read_text(path), DELIMITERS[path.suffix.lower()], str(path))
    chosen = choose_column(columns, column, str(path))
    rows = [row for row in rows if row.get(chosen, "").strip()][:count]
    try:
        return [template.format(**row) for row in rows]
    except (KeyError, IndexError, ValueError) as error:
        raise DataError(
            f"references.file = {template!r} does not fit {path}: it has the columns {', '.join(map(repr, columns))} "
            f"({error})"
        ) from None


def hub_prompts(name: str, column: str | None = None, count: int | None = None, split: str = "test") -> list[str]:
    """The prompts of a dataset on the Hugging Face hub (or of a local folder of one); rows are streamed."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise missing(f"reading the dataset {name}", "datasets") from error
    try:
        dataset: Any = load_dataset(name, split=split, streaming=True)
        columns = list(dataset.features or next(iter(dataset)))
    except (OSError, ValueError, StopIteration) as error:
        raise DataError(f"cannot read split {split!r} of the dataset {name}: {error}") from error
    chosen = choose_column(columns, column, f"the dataset {name}")
    return take((first_text(row[chosen]) for row in dataset), count, f"the dataset {name}")


def choose_column(columns: list[str], column: str | None, source: str) -> str:
    """The named column, or the obvious one."""
    available = f"{source} has the columns {', '.join(map(repr, columns))}"
    if column is not None:
        if column not in columns:
            raise DataError(f"there is no column {column!r}: {available}")
        return column
    if len(columns) == 1:
        return columns[0]
    usual = [name for name in columns if name.lower() in USUAL_COLUMNS]
    if len(usual) != 1:
        likely = (usual or columns)[0]
        raise DataError(
            f"which column holds the prompts? {available}; write --column {likely}, or column={likely!r} in [prompts]"
        )
    return usual[0]


def take(texts: Iterable[str], count: int | None, source: str) -> list[str]:
    """The first `count` prompts that are not empty."""
    if count is not None and count < 1:
        raise DataError(f"count={count}: ask for one prompt or more")
    prompts: list[str] = []
    for prompt in map(str.strip, texts):
        if prompt:
            prompts.append(prompt)
        if len(prompts) == count:
            return prompts
    if not prompts:
        raise DataError(f"{source} has no usable line: every prompt is empty")
    if count is not None:
        raise DataError(f"{source} has {len(prompts)} prompts, {count} were asked for: ask for {len(prompts)} or fewer")
    return prompts


def _read_text(path: Path) -> str:
    """The text of a file with its line ends, without a byte-order mark."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error}): save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read the prompt file {path}: {error.strerror}") from error


def _from_jsonl(text: str, column: str | None, path: Path) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"line {number} of {path} is not JSON: {error}") from error
        if isinstance(row, dict):
            row = row[choose_column(list(row), column, f"line {number} of {path}")]
        elif column is not None:
            raise DataError(f"line {number} of {path} is not an object and has no column {column!r}")
        if not isinstance(row, str):
            raise DataError(f"line {number} of {path} holds {row!r:.60}, not a text")
        yield row


def first_text(value: Any) -> str:
    """The text of a dataset's cell: the first of several captions, "" for an empty cell."""
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return "" if value is None else str(value)


# -- csv and tsv


def read_table(text: str, delimiter: str, source: str) -> tuple[list[str], list[dict[str, str]]]:
    """Column names and rows; empty lines are skipped. `source` is the file's name, for errors."""
    header_line = next((line for line in re.split(LINE_END, text) if line.strip()), "")
    if delimiter not in header_line:
        delimiter = ""
    records = [record for record in _records(text, delimiter) if any(field.strip() for _, field in record)]
    if not records:
        raise DataError(f"{source} is empty: the first line must name the columns")
    columns = [field.strip() for _, field in records[0]]
    for record in records[1:]:
        if len(record) > len(columns):
            raise DataError(
                f"line {record[0][0]} of {source} has {len(record)} fields, its header {len(columns)}: "
                "put quotes around fields that contain the delimiter"
            )
    return columns, [dict(zip(columns, (field for _, field in record), strict=False)) for record in records[1:]]


def _records(text: str, delimiter: str) -> list[list[tuple[int, str]]]:
    """All records as lists of (line number, field)."""
    ends = "|".join(filter(None, (re.escape(delimiter), LINE_END, r"\Z")))
    field = re.compile(f'(?:"((?:[^"]|"")*)"|([^\\r\\n{re.escape(delimiter)}]*))({ends})')
    records: list[list[tuple[int, str]]] = [[]]
    line = 1
    for match in field.finditer(text):  # without a gap: the second kind of field matches everywhere
        quoted, plain, end = match.groups()
        records[-1].append((line, plain if quoted is None else quoted.replace('""', '"')))
        line += len(re.findall(LINE_END, match[0]))
        if not delimiter or end != delimiter:
            records.append([])
    return records
