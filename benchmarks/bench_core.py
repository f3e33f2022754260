"""The cost of the sampling loop without the network: time per step and memory, against plain CFG in the same run.

    python benchmarks/bench_core.py                    # a network of 1 ms, latents of Stable Diffusion
    python benchmarks/bench_core.py --network-ms 10 --steps 28

The network is a busy wait, so that all the rest is the loop: plan, hare, solver and checks. Time is CPU time of this
process outside the network, the best of some repeats; the overhead is what a run has more of it than plain CFG, as a
share of a plain CFG step with its two evaluations. Memory is the peak of live tensors beyond that of plain CFG. The
limits are for the predictor, which is what runs in a pipeline; the two states of Algorithm 1 are shown beside it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thg.ode.integrate import Form, sample
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver, Track, ddim, dpm_multistep, step
from thg.plans.plan import Plan

PLAIN = "plain CFG"
GUIDANCE = 7.5
TIME_LIMIT = 0.05  # of a plain CFG step
MEMORY_LIMIT = 3  # latents per sample, beyond plain CFG


class BusyNetwork:
    """A network that takes a given time, and measures its own CPU time."""

    def __init__(self, milliseconds: float) -> None:
        self.seconds = milliseconds / 1e3
        self.spent = 0.0

    def __call__(self, x: Tensor, t: float, conditional: bool, /) -> Tensor:
        began = time.process_time()
        while time.process_time() - began < self.seconds:
            pass
        output = x * (0.1 if conditional else 0.09)
        self.spent += time.process_time() - began
        return output


def plain_cfg(network: BusyNetwork, x: Tensor, schedule: Schedule, solver: Solver) -> Tensor:
    """Classifier-free guidance with the same solver and nothing else."""
    track = Track(x)
    for i in range(schedule.steps):
        output = guided(network, track.x, schedule.nodes[i].time)
        track = step(track, solver, schedule.nodes[i], output, schedule.landings[i], schedule.normal)
        del output
    return track.x


def guided(network: BusyNetwork, x: Tensor, t: float) -> Tensor:
    e_c, e_u = network(x, t, True), network(x, t, False)
    return e_u + GUIDANCE * (e_c - e_u)


def with_plan(network: BusyNetwork, x: Tensor, schedule: Schedule, solver: Solver, plan: Plan, form: Form) -> Tensor:
    return sample(network, x, plan, schedule, solver, guidance_scale=GUIDANCE, form=form, check=False).x


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of tensors made under it, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._holders: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.numel() > 1:
                self._hold(tensor)
        return result

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not self._holders.get(address):
            self.now += size
            self.peak = max(self.peak, self.now)
        self._holders[address] = self._holders.get(address, 0) + 1
        weakref.finalize(tensor, self._release, address, size)

    def _release(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            self.now -= size


Run = Callable[[BusyNetwork], Tensor]


def measure(runs: dict[str, Run], milliseconds: float, repeats: int) -> dict[str, tuple[float, float]]:
    """CPU seconds in the loop (outside the network) and in all, of the best repeat; the runs take turns."""
    best = dict.fromkeys(runs, (float("inf"), float("inf")))
    for _ in range(repeats):
        for name, run in runs.items():
            network = BusyNetwork(milliseconds)
            began = time.process_time()
            run(network)
            whole = time.process_time() - began
            best[name] = min(best[name], (whole - network.spent, whole))
    return best


def peak_latents(run: Run, x: Tensor) -> float:
    with LiveTensors() as live:
        run(BusyNetwork(0.0))
    return live.peak / (x.numel() * x.element_size())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network-ms", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--shape", type=int, nargs="+", default=[1, 4, 64, 64])
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = options.steps
    schedule = Schedule.vp(steps)
    x = torch.randn(options.shape, generator=torch.Generator().manual_seed(0))
    every_second = tuple(range(0, steps, 2))
    plans: dict[str, tuple[Plan, Form]] = {
        "held, boost and cutoff": (Plan(steps, every_second, max(1, steps * 3 // 4), 1.1, hare_order=1), "predictor"),
        "extrapolated": (Plan(steps, every_second), "predictor"),
        "extrapolated, corrected": (Plan(steps, every_second, corrector=1.0), "predictor"),
        "Algorithm 1, two states": (Plan(steps, every_second), "two-state"),
    }
    rows = []
    for solver_name, solver in (("DDIM", ddim()), ("DPM++ 2M", dpm_multistep())):
        runs: dict[str, Run] = {PLAIN: partial(plain_cfg, x=x, schedule=schedule, solver=solver)}
        for name, (plan, form) in plans.items():
            runs[name] = partial(with_plan, x=x, schedule=schedule, solver=solver, plan=plan, form=form)
        times = measure(runs, options.network_ms, options.repeats)
        peaks = {name: peak_latents(run, x) for name, run in runs.items()}
        cfg_loop, cfg_whole = times[PLAIN]
        for name in runs:
            plan, form = plans.get(name, (Plan(steps, tuple(range(steps))), "predictor"))
            rows.append(
                {
                    "solver": solver_name,
                    "run": name,
                    "nfe": plan.nfe,
                    "loop_us": 1e6 * times[name][0] / steps,
                    "overhead": (times[name][0] - cfg_loop) / cfg_whole,
                    "extra_latents": peaks[name] - peaks[PLAIN],
                    "limited": form == "predictor",
                }
            )
    show(rows, options)


def show(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    print(f"network {options.network_ms:g} ms, {options.steps} steps, latents {tuple(options.shape)} float32")
    print(f"{'solver':10}{'run':26}{'evaluations':>12}{'loop, us/step':>15}{'overhead':>10}{'extra latents':>15}")
    for row in rows:
        print(
            f"{row['solver']:10}{row['run']:26}{row['nfe']:12}{row['loop_us']:15.0f}{row['overhead']:10.1%}"
            f"{row['extra_latents']:15.1f}"
        )
    within = all(
        row["overhead"] < TIME_LIMIT and row["extra_latents"] <= MEMORY_LIMIT for row in rows if row["limited"]
    )
    print(
        f"limits: {TIME_LIMIT:.0%} of a CFG step, {MEMORY_LIMIT} latents per sample: {'kept' if within else 'EXCEEDED'}"
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    record = {
        "benchmark": "core",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "torch": torch.__version__,
        **vars(options),
        "within_limits": within,
        "rows": [{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows],
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
