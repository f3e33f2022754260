"""A tolerant reader of csv and tsv files.

Like Python's csv module, with two differences that the public prompt files need:

- A quote opens a quoted field only if its partner closes the field. `"Head shot" of a zebra` is text with quotes in it.
- A file whose header is one column has no delimiter, so unquoted commas in its captions are text.
"""

from __future__ import annotations

import re

from thg.bench.data.errors import DataError

LINE_END = r"\r\n|\r|\n"


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
    ends = f"(?P<end>{re.escape(delimiter)}|{LINE_END}|\\Z)" if delimiter else f"(?P<end>{LINE_END}|\\Z)"
    plain = f"(?P<plain>[^\\r\\n{re.escape(delimiter)}]*)"
    field = re.compile(f'(?:"(?P<quoted>(?:[^"]|"")*)"|{plain}){ends}')
    records: list[list[tuple[int, str]]] = [[]]
    line = 1
    position = 0
    while position < len(text):
        match = field.match(text, position)
        assert match is not None  # a plain field matches everywhere
        quoted = match["quoted"]
        records[-1].append((line, match["plain"] if quoted is None else quoted.replace('""', '"')))
        line += len(re.findall(LINE_END, match[0]))
        position = match.end()
        if match["end"] != delimiter or not delimiter:
            records.append([])
    if text.endswith(delimiter) and delimiter:
        records[-1].append((line, ""))
    return [record for record in records if record]
