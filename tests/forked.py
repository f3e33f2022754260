"""Processes of their own that begin with everything imported: forks of a server that loads torch and diffusers once."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

IMPORTED = [
    *("diffusers", "transformers", "accelerate", "tests.tiny_hub", "tests.bench.runs"),
    *("thg.cli.generate", "thg.cli.compare", "thg.cli.calibration", "thg.cli.bench"),
    *("thg.bench.runner", "thg.bench.report"),
]
PATIENCE = 300


def start(
    folder: Path, task: Callable[..., Any], *args: Any, streams: Path | None = None, **environment: object
) -> BaseProcess:
    """Calls `task`, whose result is the exit code, in a folder. Its streams go to out.txt and err.txt in `streams`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=_run, args=(folder, streams or folder, environment, task, args))
    process.start()
    return process


def finish(process: BaseProcess) -> int:
    """The exit code."""
    process.join(PATIENCE)
    assert process.exitcode is not None, f"it has not ended in {PATIENCE} s"
    return process.exitcode


def script(path: Path, *words: object) -> int:
    """A task: a Python program as the command line runs it."""
    sys.argv = [str(path), *map(str, words)]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")
    return 0


def _run(
    folder: Path, streams: Path, environment: dict[str, object], task: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background inherit it as ignored
    os.environ.update({name: str(value) for name, value in environment.items()})
    os.chdir(folder)
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    import torch

    torch.set_num_threads(1)
    try:
        code = int(task(*args) or 0)
    except BaseException:
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
