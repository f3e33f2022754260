"""The `thg` command: finds the sub-command, runs it, and turns errors into one line and an exit code.

`parser` has the options of all sub-commands. Each sub-command is a function of a module of this package, which is
imported only when it is called, after a first line that says so: importing torch takes seconds.
Exit codes: 0 done, 1 the work was done and something in it failed, 2 bad input, 130 interrupted, 141 the reader of the
output has ended.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

from thg.cli.parser import COMMANDS, command_line
from thg.distribution import missing_module
from thg.errors import THGError

__all__ = ["COMMANDS", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    called = next((word for word in argv if not word.startswith("-")), None)
    atexit.register(gc.freeze)  # at the end Python would search torch and diffusers for garbage, for more than a second
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal has the letters of a plan's picture
    try:
        with _plain_warnings(called):
            code = _run(argv)
        sys.stdout.flush()
        return code
    except THGError as error:
        return _stopped(called, str(error), 2)
    except BrokenPipeError:  # `thg plan eps --sweep | head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _stopped(called, f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 2)
    except KeyboardInterrupt:
        return _stopped(called, "interrupted", 130)


def _stopped(command: str | None, why: str, code: int) -> int:
    print(f"{' '.join(filter(None, ('thg', command)))}: {' '.join(why.split())}", file=sys.stderr)
    return code


@contextmanager
def _plain_warnings(command: str | None) -> Iterator[None]:
    """Warnings as lines of the command, without the place in the code."""
    before = warnings.formatwarning

    def formatted(message: Warning | str, *where: Any, **more: Any) -> str:
        return f"thg {command}: {' '.join(str(message).split())}\n"

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run(argv: list[str]) -> int:
    parser = command_line()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        help_line = " ".join(filter(None, ("thg", args.command, "--help")))
        raise THGError(f"unknown: {' '.join(unknown)} ({help_line} lists all)")
    if args.command is None:
        parser.print_help()
        return 0
    if args.command != "plan":  # which loads nothing
        what = f"loading {args.model}" if "model" in args else "starting"
        print(f"thg {args.command}: {what} ...", file=sys.stderr, flush=True)
    try:
        function = resolve_name(f"thg.cli.{COMMANDS[args.command].function}")
    except ModuleNotFoundError as error:
        raise missing_module(f"thg {args.command}", error) from error
    return int(function(args))
