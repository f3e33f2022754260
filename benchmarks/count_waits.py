"""How often the host waits for the device in a run: plain CFG, and what thg's default plan adds, family by family.

    PYTHONPATH=. python benchmarks/count_waits.py --steps 20

Counted on the simulated accelerator of the tests, with tiny pipelines: the number depends on the code alone, and not on
the size of the network. "first" is the first run of a pipeline class, in which thg learns or checks its layout; "later"
is any run after it. The target is at most 2; the tests pin it.
"""

from __future__ import annotations

import argparse
import re

import torch

import thg
from tests.adapter.families import FAMILIES, Case
from tests.device.accelerator import NAME, counted_waits
from tests.device.test_device import on

TARGET = 2


def waits_of(case: Case, steps: int) -> int:
    with counted_waits() as waits:
        case.run(steps=steps)
        return sum(waits.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="", help="a regular expression on the names of the families")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| family | plain | thg adds: first | later |")
    print("| --- | --- | --- | --- |")
    most = 0
    for name in sorted(family for family in FAMILIES if re.search(args.only, family)):
        case = on(NAME, FAMILIES[name](), torch.float32)
        plain = waits_of(case, args.steps)
        thg.enable(case.pipe)
        first, later = (waits_of(case, args.steps) - plain for _ in range(2))
        most = max(most, first, later)
        print(f"| {name} | {plain} | {first} | {later} |", flush=True)
    print(f"at most {most}; target {TARGET}")


if __name__ == "__main__":
    main()
