"""Small benchmarks on a tiny Stable Diffusion that is saved to disk, as the hub has it."""

from pathlib import Path

import torch

from tests.calibrate.pipelines import PROMPTS, stable_diffusion
from thg.bench.config import BenchConfig, parse_config
from thg.bench.runner import Shard, generate

STEPS = 6

METHODS = [
    {"name": "CFG", "policy": "cfg"},
    {"name": "CFG-Cache", "policy": "cfg-cache", "nfe": 9},
    {"name": "thg uniform", "policy": "uniform", "nfe": 9},
]


def save_model(folder: Path) -> Path:
    """A tiny model and its prompts. Returns the model's folder."""
    torch.set_num_threads(1)
    stable_diffusion().save_pretrained(folder / "model")
    prompts = [f"{prompt} {word}" for word in ("big", "small", "old", "new") for prompt in PROMPTS]
    (folder / "prompts.txt").write_text("\n".join(prompts) + "\n")
    return folder / "model"


def values(**changes):
    """The values of a small configuration; its paths are relative to the folder of `save_model`."""
    return {
        "title": "tiny",
        "steps": STEPS,
        "guidance_scale": 5.0,
        "count": 6,
        "batch_size": 3,
        "metrics": ["psnr"],
        "model": {"source": "model"},
        "prompts": {"file": "prompts.txt"},
        "methods": METHODS,
        **changes,
    }


def config_in(folder: Path, **changes) -> BenchConfig:
    given = values(**changes)
    if given["model"].get("source") == "model":
        given["model"] = {**given["model"], "source": str(folder / "model")}
    return parse_config(given, folder)


def quietly(config: BenchConfig, path: Path, shard: Shard | None = None) -> None:
    generate(config, path, shard or Shard(), progress=lambda text: None)


def pictures(path: Path) -> dict[str, bytes]:
    """All pictures of a run by their relative names."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted((path / "samples").rglob("*.png"))}


def records(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted((path / "samples").rglob("*.json"))}
