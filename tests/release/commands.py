"""Calling the command line: in this process, or in one of its own."""

from __future__ import annotations

import contextlib
import io
import re
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests import forked
from thg.cli import main


def call(*words: object) -> tuple[int, str, str]:
    """The exit code of a command and what it has printed, on stdout and, after its first line, on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return code, out.getvalue(), without_start(err.getvalue())


def refused(*words: object) -> str:
    """The message of a command that must fail: one line, and an exit code that is not zero."""
    code, _, err = call(*words)
    assert code == 2, err
    assert err.startswith(f"thg {words[0]}: "), err
    assert err.count("\n") == 1, err
    return err


def start(folder: Path, *words: object) -> BaseProcess:
    """A command in a process of its own, with `folder` as its place; its streams go to out.txt and err.txt there."""
    return forked.start(folder, main, [str(word) for word in words])


def without_start(err: str) -> str:
    """What a command prints after the line that it starts or loads."""
    return re.sub(r"\Athg \w+: (loading .*|starting) \.\.\.\n", "", err)
