# A copy of src/thg/files.py, made by comfyui/make_core.py: change it there.
"""Atomic writing of files: a file is complete or not there, also when the process is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def atomic_target(path: Path) -> Iterator[Path]:
    """A temporary path next to `path`, with its suffix, that replaces it when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{uuid4().hex}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes bytes to a file, all of them or none."""
    with atomic_target(path) as temporary:
        temporary.write_bytes(content)
