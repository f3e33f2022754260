"""The training loop that every stage shares: seeded batches, cosine learning rate, EMA, checkpoints, progress.

It knows nothing of pictures. A stage gives it a module and a loss as a function of a random generator; the generator
depends on the seed and the step alone, so a run that was killed and resumed ends in the same bytes as one that was not.
"""

import argparse
import csv
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from thg.files import atomic_target
from training.data import DEBIAN_FOLDER

WORK = "build/training"


@dataclass(frozen=True)
class Options:
    """What the command line of a training stage says."""

    work: Path
    data: Path
    steps: int
    minutes: float | None
    batch: int
    learning_rate: float
    seed: int
    limit: int | None
    checkpoint_every: int
    threads: int


def option_parser(
    description: str, *, steps: int, learning_rate: float, data: Path = DEBIAN_FOLDER, work: str = WORK
) -> argparse.ArgumentParser:
    """A parser of the options that all training stages have, with a stage's own defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(work), help="folder of all intermediate files")
    parser.add_argument("--data", type=Path, default=data, help="folder of the training data")
    parser.add_argument("--steps", type=int, default=steps, help="optimizer steps")
    parser.add_argument("--minutes", type=float, help="end earlier, after this long (then the result depends on speed)")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=learning_rate, help="peak; a cosine brings it to zero")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="use only this many pictures")
    parser.add_argument("--checkpoint-every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    return parser


def parse_options(
    description: str, arguments: list[str] | None, *, steps: int, learning_rate: float, work: str = WORK
) -> Options:
    """The options of a stage that has no others; `arguments` are the command line's."""
    parser = option_parser(description, steps=steps, learning_rate=learning_rate, work=work)
    return Options(**vars(parser.parse_args(arguments)))


def step_generator(seed: int, step: int) -> torch.Generator:
    """All randomness of one step, as a function of the seed and the step's number."""
    return torch.Generator().manual_seed(seed * 1_000_000_007 + step)


def learning_rate_factor(progress: float, warmup: float = 0.02) -> float:
    """Linear warm-up, then half a cosine down to zero; `progress` runs from 0 to 1."""
    return min(1.0, progress / warmup + 1e-3) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


class Averaged:
    """Exponential moving average of a module's parameters; it warms up so that the first steps are soon forgotten."""

    def __init__(self, module: nn.Module, decay: float = 0.999):
        self.decay = decay
        self.values = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}

    def update(self, module: nn.Module, step: int) -> None:
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        current = [parameter.detach() for _, parameter in module.named_parameters()]
        torch._foreach_lerp_(list(self.values.values()), current, weight)


def _optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"optimizer.{key}.{name}": value
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def save_atomically(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file so that a reader sees the old one or the new one, never a part."""
    with atomic_target(path) as temporary:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, temporary, metadata)


def _save_checkpoint(
    path: Path, module: nn.Module, averaged: Averaged, optimizer: torch.optim.Optimizer, state: dict[str, float]
) -> None:
    tensors: dict[str, torch.Tensor] = {f"model.{name}": value for name, value in module.named_parameters()}
    tensors |= {f"average.{name}": value for name, value in averaged.values.items()}
    tensors |= _optimizer_tensors(module, optimizer)
    save_atomically(tensors, path, {"state": json.dumps(state)})


def _load_checkpoint(
    path: Path, module: nn.Module, averaged: Averaged, optimizer: torch.optim.Optimizer
) -> tuple[int, float]:
    with safe_open(path, framework="pt") as file, torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(file.get_tensor(f"model.{name}"))
            averaged.values[name].copy_(file.get_tensor(f"average.{name}"))
            optimizer.state[parameter] = {
                key: file.get_tensor(f"optimizer.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")
            }
        state = json.loads(file.metadata()["state"])
        return int(state["step"]), float(state["seconds"])


def train(
    module: nn.Module, loss_of: Callable[[torch.Generator], torch.Tensor], options: Options, name: str
) -> dict[str, torch.Tensor]:
    """Train `module` (parameters only, no buffers that change) and return its averaged parameters.

    Leaves `<name>.ckpt.safetensors` (everything needed to resume), `<name>.safetensors` (the average, when finished)
    and `<name>.csv` (the log) in the work folder.
    """
    torch.set_num_threads(options.threads)
    checkpoint = options.work / f"{name}.ckpt.safetensors"
    averaged = Averaged(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.learning_rate, weight_decay=0.01, betas=(0.9, 0.99))
    step, spent = 0, 0.0
    options.work.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        step, spent = _load_checkpoint(checkpoint, module, averaged, optimizer)
        _shorten_log(options.work / f"{name}.csv", step)
        print(f"{name}: resumed at step {step}", flush=True)
    started = time.monotonic() - spent
    losses: list[float] = []
    while True:
        seconds = time.monotonic() - started
        progress = step / options.steps
        if options.minutes:
            progress = max(progress, seconds / (60 * options.minutes))
        if progress >= 1.0:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * learning_rate_factor(progress)
        loss = loss_of(step_generator(options.seed, step))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        step += 1
        averaged.update(module, step)
        losses.append(float(loss.detach()))
        if step % 100 == 0:
            _report(options, name, step, sum(losses) / len(losses), time.monotonic() - started, progress)
            losses = []
        if step % options.checkpoint_every == 0:
            state = {"step": step, "seconds": time.monotonic() - started}
            _save_checkpoint(checkpoint, module, averaged, optimizer, state)
    _save_checkpoint(checkpoint, module, averaged, optimizer, {"step": step, "seconds": time.monotonic() - started})
    save_atomically(averaged.values, options.work / f"{name}.safetensors")
    print(f"{name}: finished after {step} steps, {(time.monotonic() - started) / 60:.1f} minutes", flush=True)
    return averaged.values


def _shorten_log(log: Path, last_step: int) -> None:
    """Take out the rows of steps that a killed run made after its last checkpoint."""
    if log.exists():
        head, *rows = log.read_text().splitlines()
        kept = [row for row in rows if int(row.split(",")[0]) <= last_step]
        log.write_text("\n".join([head, *kept]) + "\n")


def _report(options: Options, name: str, step: int, loss: float, seconds: float, progress: float) -> None:
    left = seconds * (1 - progress) / max(progress, 1e-9)
    rate = step * options.batch / seconds
    print(f"{name}: step {step}/{options.steps}  loss {loss:.5f}  {rate:.0f}/s  {left / 60:.1f} min left", flush=True)
    log = options.work / f"{name}.csv"
    new = not log.exists()
    with log.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(["step", "loss", "seconds"])
        writer.writerow([step, f"{loss:.6f}", f"{seconds:.1f}"])
