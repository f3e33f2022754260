"""Calling the command line: in this process, or in one of its own that begins with everything imported."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path

from thg.cli import main

WARM = [
    *("thg.cli.generate", "thg.cli.compare", "thg.cli.demo", "thg.cli.calibrate", "thg.cli.bench"),
    *("thg.bench.runner", "thg.bench.report", "diffusers", "tests.bench.runs"),
]


def call(*words: object) -> tuple[int, str, str]:
    """The exit code of a command and what it has printed, on stdout and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return code, out.getvalue(), err.getvalue()


def refused(*words: object) -> str:
    """The message of a command that must fail: one line, and an exit code that is not zero."""
    code, _, err = call(*words)
    assert code == 2, err
    assert err.startswith(f"thg {words[0]}: "), err
    assert err.count("\n") == 1, err
    return err


# -- a process of its own


def start(folder: Path, *words: object) -> multiprocessing.process.BaseProcess:
    """A command in a process of its own, with `folder` as its place; its streams go to out.txt and err.txt there."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    process = context.Process(target=_command, args=(str(folder), [str(word) for word in words]))
    process.start()
    return process


def _command(folder: str, words: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background inherit it as ignored
    os.chdir(folder)
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    import torch

    torch.set_num_threads(1)
    try:
        code = main(words)
    except BaseException:
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
