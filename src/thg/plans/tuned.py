"""What `thg.tune` has measured on a network: a planner that can be saved, loaded and found again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from thg.errors import PlanError
from thg.files import write_atomically
from thg.plans.fidelity import evaluations_within, network_plan
from thg.plans.plan import Plan, Skips
from thg.plans.run import RunInfo

FORMAT = "thg-tuned-1"


@dataclass(frozen=True)
class Tuned:
    """As many evaluations as keep this network within a tolerance, measured by comparing runs; made by `thg.tune`.

    error: the tolerance. effort: factor on the evaluations of `thg.within`. factor: of this network's true errors over
    the estimates of its runs. reached: the error that 95 % of other samples are expected to stay within, with this
    effort; above `error` if the tolerance cannot be kept. samples, steps, guidance_scale: of the runs that were
    compared. network, scheduler, precision: what they ran on. nfe, plain_nfe: evaluations per sample of such a run, and
    of a plain one.
    """

    error: float
    effort: float
    factor: float
    reached: float
    samples: int
    steps: int
    guidance_scale: float | None = None
    network: str = ""
    scheduler: str = ""
    precision: str = ""
    nfe: int = 0
    plain_nfe: int = 0
    skips: ClassVar[Skips] = "network"

    def plan(self, run: RunInfo) -> Plan:
        return network_plan(run, evaluations_within(self.error, run, self.effort))

    @property
    def kept(self) -> bool:
        """Is the tolerance kept?"""
        return self.reached <= self.error

    def __str__(self) -> str:
        kept = f"95 % within {self.error:.1%}" if self.kept else f"95 % within {self.reached:.1%}, not {self.error:.1%}"
        cost = f" at {self.nfe} of {self.plain_nfe} evaluations" if self.nfe else ""
        return f"tuned on {self.samples} samples: {kept}{cost}"

    # -- files

    def save(self, path: str | Path) -> None:
        """Writes a small JSON file."""
        write_atomically(Path(path), (json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Tuned:
        """Reads what `save` has written."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            found = data.pop("format", None)
            tuned = cls(**data)
            valid = 0 < tuned.error < 1 and 0.1 <= tuned.effort <= 10 and tuned.factor > 0
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise PlanError(f"{path} is no file of Tuned.save ({error}); run thg.tune again") from None
        if found != FORMAT or not valid:
            raise PlanError(f"{path} is no file of Tuned.save, or not of this version of thg; run thg.tune again")
        return tuned


def folder() -> Path:
    """Where results of `thg.tune` are found again: THG_CACHE, or the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("THG_CACHE") or Path(cache) / "thg") / "tuned"
