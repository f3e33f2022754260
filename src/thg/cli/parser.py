"""The command line: every command with its options. Nothing here needs torch, so `--help` answers at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from thg.distribution import __version__
from thg.plans.plan import PRESETS
from thg.plans.tolerance import DEFAULT_ERROR, PRIOR

COMMANDS = {
    "generate": "make pictures (or sounds) with a pipeline, and report the savings",
    "compare": "the same seeds with plain CFG, the paper's plan and ours, side by side",
    "demo": "the comparison on several prompts of the shipped model",
    "plan": "show a plan, or the plan that a profile gives",
    "tune": "find how many evaluations keep a model within a tolerance, and remember it",
    "calibrate": "measure where the outputs of a model can be predicted, for better plans",
    "bench": "compare thg with other methods",
    "report": "rebuild the report of a benchmark",
    "studio": "compare interactively in the browser",
    "doctor": "versions, devices, and what is missing or broken",
}
PORT = 7861  # of the studio
DEFAULT_MODEL: Final = "emoji"  # of the shipped ones


def command_line() -> argparse.ArgumentParser:
    """The parser of `thg`; the arguments it returns have the name of the command in `command`."""
    parser = argparse.ArgumentParser(
        prog="thg", description="Guided diffusion sampling with fewer network evaluations.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"thg {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    options = {
        "generate": _generate,
        "compare": _compare,
        "demo": _demo,
        "plan": _plan,
        "tune": _tune,
        "calibrate": _calibrate,
        "bench": _bench,
        "report": _report,
        "studio": _studio,
    }
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what, allow_abbrev=False)
        if name in options:
            options[name](command)
    return parser


# -- the commands


def _generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", help="what to make; several prompts make several pictures")
    parser.add_argument("--prompts", type=Path, help="a file of prompts: txt (one per line), csv, tsv or jsonl")
    parser.add_argument("--column", help="which column of the file holds the prompts")
    parser.add_argument(
        "-o", "--out", type=Path, help="where to write (default: out.png, out.wav or out.gif, or the next free name)"
    )
    parser.add_argument(
        "--enlarge", type=whole_number(1), default=1, metavar="N", help="each pixel N times as wide and high"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan that the run would follow, and end")
    parser.add_argument(
        "--plan",
        default="default",
        help="default (1%%); cfg (plain guidance); how far results may be from plain CFG's, such as 0.5%%; a preset of "
        f"the paper ({', '.join(sorted(PRESETS))}); a share of CFG's evaluations such as 0.65, or a number of them "
        "such as 70; or a JSON file of a plan or a profile",
    )
    _add_sampling(parser)
    _add_model(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="+", help="what to make; a row of pictures for each prompt and seed")
    _add_sheet(parser, "compare.png")


def _demo(parser: argparse.ArgumentParser) -> None:
    _add_sheet(parser, "demo.png")


def _add_sheet(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("-o", "--out", type=Path, help=f"where to write (default: {name}, or the next free name)")
    _add_sampling(parser)
    _add_model(parser)


def _plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        help=f"a profile or a plan (JSON file), eps or flow (the shipped profiles), or a preset "
        f"({', '.join(sorted(PRESETS))}); without it, the default plan for a model without a profile",
    )
    parser.add_argument("--steps", type=int, help="sampler steps (default: the profile's, else 50)")
    parser.add_argument("--guidance-scale", type=guidance, help="w (default: the profile's)")
    parser.add_argument(
        "--error",
        type=tolerance,
        help=f"how far results may be from plain CFG's, such as 0.5%% (default without --nfe and --rho: "
        f"{100 * DEFAULT_ERROR:g}%%)",
    )
    parser.add_argument(
        "--nfe",
        help="instead of an error, a budget: a share of CFG such as 0.65 or a count such as 70; for a count without "
        "--steps and without a profile, thg chooses the number of steps",
    )
    parser.add_argument("--rho", type=float, help="the paper's planner: allowed ratio of hare error to tortoise error")
    parser.add_argument("--method", choices=("optimal", "algorithm2"), help="how a profile meets a budget")
    parser.add_argument(
        "--hare-order", type=int, choices=(1, 2), help="1 holds the term over a leap, 2 extrapolates it"
    )
    parser.add_argument("--cutoff", type=int, help="no guidance from this step on")
    parser.add_argument("--boost", type=float, help="factor on the term during a leap (default: 1)")
    parser.add_argument(
        "--corrector",
        type=float,
        help=f"share of a leap's error that is corrected (default: {PRIOR.corrector:g}; 0 with rho or algorithm2)",
    )
    parser.add_argument("--sweep", action="store_true", help="the grids over rho, as in the paper's appendix")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--plot", type=Path, help="write the profile's curves and the grid as a picture")


def _tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--error", type=tolerance, default=DEFAULT_ERROR, help="the tolerance, such as 0.01 or 1%% (default: 1%%)"
    )
    parser.add_argument("--out", type=Path, help="write the result to this file, too")
    _add_measuring(parser, "where finished runs are stored until the end (default: in the cache)")


def _calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="the profile to write, such as profile.json")
    parser.add_argument(
        "--sensitivity",
        type=int,
        default=1,
        help="further runs per sample that measure how much of an error survives; 0 skips it (default: %(default)s)",
    )
    parser.add_argument(
        "--algorithm3",
        action="store_true",
        help="also measure the paper's error constants, for thg plan --rho: two more plain runs per sample",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing profile")
    _add_measuring(parser, "where finished batches are stored (default: OUT.parts)")


def _add_measuring(parser: argparse.ArgumentParser, folder: str) -> None:
    """The options of the commands that measure a model on samples."""
    parser.add_argument("--prompts", type=Path, help="txt, csv, tsv or jsonl (default for shipped models: their own)")
    parser.add_argument("--column", help="which column of the file holds the prompts")
    parser.add_argument(
        "--samples",
        type=whole_number(1),
        help="use only the first N prompts (default: all, or 16 for the shipped models)",
    )
    parser.add_argument("--steps", type=whole_number(1), help="sampler steps (default: the model's own)")
    parser.add_argument("--guidance-scale", type=guidance, help="w (default: the model's own)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise (default: 0)")
    parser.add_argument("--batch-size", type=int, default=4, help="prompts per run (default: 4)")
    parser.add_argument("--folder", type=Path, help=folder)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_model(parser)
    parser.set_defaults(image=None)


def _bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="what to run, as TOML (default: the shipped model)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: runs/bench-<hash of config>)"
    )
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="where samples are kept and shared (default: store next to --out)"
    )
    parser.add_argument("--check", action="store_true", help="report what is missing, and run nothing")
    parser.add_argument("--count", type=int, metavar="N", help="prompts, instead of the configuration's number")
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples per batch")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the run")
    parser.add_argument("--device", help="where to run, such as cuda:1 (default: the best available)")
    parser.add_argument("--shard", metavar="I/K", help="this process is the I-th of K that share the folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the table")


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of a run, made by thg bench")
    parser.add_argument("--device", help="where the networks of the metrics run (default: the best available)")
    parser.add_argument("--shard", metavar="I/K", help="this process is the I-th of K that measure together")


def _studio(parser: argparse.ArgumentParser) -> None:
    _add_loading(parser)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="offer the models below this folder on the page")
    parser.add_argument("--profile", help="a profile of this model, made by thg calibrate")
    parser.add_argument("--port", type=int, default=PORT, help=f"0 for any free port (default: {PORT})")
    parser.add_argument(
        "--host", help="listen on this address for other machines too, with a token (default: this machine only)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address and do not open it")
    parser.set_defaults(scheduler=None, image=None)  # chosen on the page


# -- options that several commands share


def _add_model(parser: argparse.ArgumentParser) -> None:
    """The options of every command that loads a pipeline."""
    group = parser.add_argument_group("model")
    _add_loading(group)
    group.add_argument(
        "--scheduler", metavar="NAME", help="another one than the model's own, such as euler, dpm, unipc or euler-a"
    )


def _add_loading(group: argparse._ActionsContainer) -> None:
    """Which pipeline, and where it runs."""
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help="emoji, audio, eps or flow (shipped), a hub id, a folder, or a .safetensors file (default: %(default)s)",
    )
    group.add_argument("--variant", help="of the weight files of a folder or hub id, such as fp16")
    group.add_argument(
        "--config",
        metavar="FOLDER",
        help="for a .safetensors file: a diffusers model of the same kind, which has its configuration (default: the "
        "model that it was made from, by its hub id)",
    )
    group.add_argument(
        "--lora",
        type=lora,
        action="append",
        default=[],
        metavar="FILE[:SCALE]",
        help="a LoRA of this model, such as style.safetensors:0.8; can be repeated",
    )
    group.add_argument("--device", help="such as cuda, cuda:1, mps or cpu (default: the best available)")
    group.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help="precision of the weights (default: float32 on the CPU)",
    )
    group.add_argument(
        "--offload",
        choices=("model", "sequential"),
        help="keep weights in main memory: whole networks, or single layers (slower, least memory)",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """The options of every command that samples."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--steps", type=whole_number(1), help="sampler steps (default: the model's own)")
    group.add_argument("--guidance-scale", type=guidance, help="w (default: the model's own)")
    group.add_argument("--negative-prompt", help="what the picture should not show")
    group.add_argument("--width", type=whole_number(1), help="in pixels (default: the model's own)")
    group.add_argument("--height", type=whole_number(1), help="in pixels (default: the model's own)")
    group.add_argument("--image", type=Path, help="a picture to start from")
    group.add_argument(
        "--strength", type=strength, default=0.6, help="how much of it may change, above 0 up to 1 (default: 0.6)"
    )
    group.add_argument("--seed", type=int, default=0, help="seed of the first picture (default: 0)")
    group.add_argument("--count", type=whole_number(1), default=1, help="pictures per prompt, with seeds in sequence")
    group.add_argument(
        "--batch-size", type=whole_number(1), help="pictures at a time (default: 16 for shipped models, else 1)"
    )
    group.add_argument("--force", action="store_true", help="replace files that exist")


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


def lora(text: str) -> tuple[Path, float]:
    """A file, and the scale after a colon, if there is one."""
    name, _, scale = text.rpartition(":")
    try:
        return (Path(name), float(scale)) if name else (Path(text), 1.0)
    except ValueError:  # a colon of the file's name
        return Path(text), 1.0


def whole_number(lowest: int) -> Callable[[str], int]:
    """A whole number that is not below `lowest`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text}") from None
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {value}")
        return value

    return parse
