"""The command line: every command with its options. Nothing here needs torch, so `--help` answers at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from thg.distribution import __version__
from thg.plans.plan import PRESETS
from thg.plans.tolerance import DEFAULT_ERROR, PRIOR

PORT = 7861  # of the studio
DEFAULT_MODEL: Final = "emoji"  # of the shipped ones
NAMED_PRESETS = ", ".join(sorted(PRESETS))


Options = Callable[[argparse.ArgumentParser], None]


class Command(NamedTuple):
    """What it does, what adds its options to a parser, and "module:function" of this package that runs it."""

    what: str
    options: Options
    function: str


COMMANDS: dict[str, Command] = {}


def _command(name: str, function: str, what: str) -> Callable[[Options], Options]:
    def add(options: Options) -> Options:
        COMMANDS[name] = Command(what, options, function)
        return options

    return add


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as of all other errors, in place of the usage."""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')} ({self.prog} --help lists all)\n")


def command_line() -> argparse.ArgumentParser:
    """The parser of `thg`; the arguments it returns have the name of the command in `command`."""
    parser = _Parser(
        prog="thg", description="Guided diffusion sampling with fewer network evaluations.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"thg {__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        command.options(parsers.add_parser(name, help=command.what, description=command.what, allow_abbrev=False))
    return parser


# -- the commands


@_command("generate", "generate:run", "make pictures (or sounds) with a pipeline, and report the savings")
def _generate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompt", nargs="*", help="what to make; several prompts make several pictures")
    _add_prompt_file(parser)
    add("-o", "--out", type=Path, help="where to write (default: out.png, out.wav or out.gif, or the next free name)")
    add("--enlarge", type=count, default=1, metavar="N", help="each pixel N times as wide and high")
    add("--dry-run", action="store_true", help="print the plan that the run would follow, and end")
    add(
        "--plan",
        default="default",
        help="default (1%%); cfg (plain guidance); how far results may be from plain CFG's, such as 0.5%%; a preset of "
        f"the paper ({NAMED_PRESETS}); a share of CFG's evaluations such as 0.65, or a number of them such as 70; or a "
        "JSON file of a plan or a profile",
    )
    _add_sampling(parser)


@_command("compare", "compare:run", "the same seeds without thg and with it, side by side, and the differences")
def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="+", help="what to make; a row of pictures for each prompt and seed")
    _demo(parser)


@_command("demo", "compare:demo", "the comparison on several prompts of the shipped model")
def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, help="where to write (default: the next free NAME-OF-COMMAND.png)")
    _add_sampling(parser)


@_command("plan", "plan:run", "show at which steps the network would run")
def _plan(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        help=f"a profile or a plan (JSON file), eps or flow (the shipped profiles), or a preset ({NAMED_PRESETS}); "
        "without it, the default plan for a model without a profile",
    )
    add("--steps", type=int, help="sampler steps (default: the profile's, else 50)")
    add("--guidance-scale", type=guidance, help="w (default: the profile's)")
    add(
        "--error",
        type=tolerance,
        help=f"how far results may be from plain CFG's, such as 0.5%% (default without --nfe and --rho: "
        f"{100 * DEFAULT_ERROR:g}%%)",
    )
    add(
        "--nfe",
        help="instead of an error, a budget: a share of CFG such as 0.65 or a count such as 70; for a count without "
        "--steps and without a profile, thg chooses the number of steps",
    )
    add("--rho", type=float, help="the paper's planner: allowed ratio of hare error to tortoise error")
    add("--method", choices=("optimal", "algorithm2"), help="how a profile meets a budget")
    add("--hare-order", type=int, choices=(1, 2), help="1 holds the term over a leap, 2 extrapolates it")
    add("--cutoff", type=int, help="no guidance from this step on")
    add("--boost", type=float, help="factor on the term during a leap (default: 1)")
    add(
        "--corrector",
        type=float,
        help=f"share of a leap's error that is corrected (default: {PRIOR.corrector:g}; 0 with rho or algorithm2)",
    )
    add("--sweep", action="store_true", help="the grids over rho, as in the paper's appendix")
    add("--json", action="store_true", help="print the plan as JSON")
    add("--plot", type=Path, help="write the profile's curves and the grid as a picture")


@_command("tune", "calibration:tune", "find how many evaluations keep a model within a tolerance, and remember it")
def _tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--error", type=tolerance, default=DEFAULT_ERROR, help="the tolerance, such as 0.01 or 1%% (default: 1%%)"
    )
    parser.add_argument("--out", type=Path, help="write the result to this file, too")
    _add_measuring(
        parser,
        "where finished runs are stored until the end (default: in the cache); the same command resumes from there",
    )


@_command(
    "calibrate", "calibration:calibrate", "measure where the outputs of a model can be predicted, for better plans"
)
def _calibrate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the profile to write, such as profile.json")
    add(
        "--sensitivity",
        type=int,
        default=1,
        help="further runs per sample that measure how much of an error survives; 0 skips it (default: %(default)s)",
    )
    add(
        "--algorithm3",
        action="store_true",
        help="also measure the paper's error constants, for thg plan --rho: two more plain runs per sample",
    )
    add("--force", action="store_true", help="replace an existing profile")
    _add_measuring(parser, "where finished batches are stored (default: OUT.parts)")


@_command("bench", "bench:run", "compare thg with other methods")
def _bench(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="what to run, as TOML (default: the shipped model)")
    add("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/bench-<hash of config>)")
    add("--store", type=Path, metavar="DIR", help="where samples are kept and shared (default: store next to --out)")
    add("--check", action="store_true", help="report what is missing, and run nothing")
    add("--count", type=int, metavar="N", help="prompts, instead of the configuration's number")
    add("--batch-size", type=int, metavar="N", help="samples per batch")
    add("--seed", type=int, metavar="N", help="seed of the run")
    add("--quiet", action="store_true", help="print nothing but the table")
    _add_shard(parser)


@_command("report", "bench:report", "rebuild the report of a benchmark")
def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of a run, made by thg bench")
    _add_shard(parser)


@_command("studio", "studio:run", "compare interactively in the browser")
def _studio(parser: argparse.ArgumentParser) -> None:
    _add_loading(parser)
    add = parser.add_argument
    add("--models", type=Path, metavar="FOLDER", help="offer the models below this folder on the page")
    add("--profile", help="a profile of this model, made by thg calibrate")
    add("--port", type=int, default=PORT, help=f"0 for any free port (default: {PORT})")
    add("--host", help="listen on this address for other machines too, with a token (default: this machine only)")
    add("--no-browser", action="store_true", help="print the address and do not open it")
    parser.set_defaults(scheduler=None)  # chosen on the page


@_command("doctor", "doctor:run", "versions, devices, and what is missing or broken")
def _doctor(parser: argparse.ArgumentParser) -> None:
    pass


# -- options that several commands share


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """The options of every command that samples."""
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    _add_run(group, "seed of the first picture")
    add("--negative-prompt", help="what the picture should not show")
    add("--width", type=count, help="in pixels (default: the model's own)")
    add("--height", type=count, help="in pixels (default: the model's own)")
    add("--image", type=Path, help="a picture to start from")
    add("--strength", type=strength, help="how much of it may change, above 0 up to 1 (default: 0.6)")
    add("--count", type=count, default=1, help="pictures per prompt, with seeds in sequence")
    add("--batch-size", type=count, help="pictures at a time (default: 16 for shipped models, else 1)")
    add("--force", action="store_true", help="replace files that exist")
    _add_model(parser)


def _add_measuring(parser: argparse.ArgumentParser, folder: str) -> None:
    """The options of the commands that measure a model on samples."""
    _add_prompt_file(parser)
    add = parser.add_argument
    add("--samples", type=count, help="use only the first N prompts (default: all, or 16 of the shipped models' own)")
    _add_run(parser, "seed of the noise")
    add("--batch-size", type=int, default=4, help="prompts per run (default: 4)")
    add("--folder", type=Path, help=folder)
    add("--quiet", action="store_true", help="no progress bar")
    _add_model(parser)
    parser.set_defaults(image=None, strength=None)


def _add_run(group: argparse._ActionsContainer, seed: str) -> None:
    add = group.add_argument
    add("--steps", type=count, help="sampler steps (default: the model's own)")
    add("--guidance-scale", type=guidance, help="w (default: the model's own)")
    add("--seed", type=int, default=0, help=f"{seed} (default: 0)")


def _add_prompt_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=Path, help="a file of prompts: txt (one per line), csv, tsv or jsonl")
    parser.add_argument("--column", help="which column of the file holds the prompts")


def _add_shard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="where to run, such as cuda:1 (default: the best available)")
    parser.add_argument("--shard", metavar="I/K", help="this process is the I-th of K that share the folder")


def _add_model(parser: argparse.ArgumentParser) -> None:
    """The options of every command that loads a pipeline."""
    group = parser.add_argument_group("model")
    _add_loading(group)
    group.add_argument(
        "--scheduler", metavar="NAME", help="another one than the model's own, such as euler, dpm, unipc or euler-a"
    )


def _add_loading(group: argparse._ActionsContainer) -> None:
    """Which pipeline, and where it runs."""
    add = group.add_argument
    add(
        "--model",
        default=DEFAULT_MODEL,
        help="emoji, audio, eps or flow (shipped), a hub id, a folder, or a .safetensors file (default: %(default)s)",
    )
    add("--variant", help="of the weight files of a folder or hub id, such as fp16")
    add(
        "--config",
        metavar="FOLDER",
        help="for a .safetensors file: a diffusers model of the same kind, which has its configuration (default: the "
        "model that it was made from, by its hub id)",
    )
    add(
        "--lora",
        type=lora,
        action="append",
        default=[],
        metavar="FILE[:SCALE]",
        help="a LoRA of this model, such as style.safetensors:0.8; can be repeated",
    )
    add("--device", help="such as cuda, cuda:1, mps or cpu (default: the best available)")
    add(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help="precision of the weights (default: float32 on the CPU)",
    )
    add(
        "--offload",
        choices=("model", "sequential"),
        help="keep weights in main memory: whole networks, or single layers (slower, least memory)",
    )


# -- numbers


def _number(text: str, allowed: Callable[[float], bool], wanted: str, percent: bool = False) -> float:
    try:
        value = float(text[:-1]) / 100 if percent and text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"must {wanted}, not {text}")
    return value


def guidance(text: str) -> float:
    """A guidance scale."""
    return _number(text, lambda value: 0 < value < math.inf, "be a number above 0, such as 7.5 (1 is no guidance)")


def strength(text: str) -> float:
    """The share of the steps that a run from a picture makes."""
    return _number(text, lambda value: 0 < value <= 1, "lie above 0 and not above 1, such as 0.6")


def tolerance(text: str) -> float:
    """How far results may be from plain CFG's: 0.01 or 1%."""
    return _number(text, lambda value: 0 < value < 1, "lie above 0 and below 1, such as 0.01 or 1%", percent=True)


def count(text: str) -> int:
    """A whole number that is at least 1."""
    _number(text, float.is_integer, "be a whole number")
    return int(_number(text, lambda value: value >= 1, "be at least 1"))


def lora(text: str) -> tuple[Path, float]:
    """A file, and the scale after a colon, if there is one."""
    name, _, scale = text.rpartition(":")
    try:
        return (Path(name), float(scale)) if name else (Path(text), 1.0)
    except ValueError:
        if name.endswith(".safetensors"):
            raise argparse.ArgumentTypeError(
                f"the scale after the colon must be a number, such as 0.8, not {scale}"
            ) from None
        return Path(text), 1.0  # a colon of the file's name
