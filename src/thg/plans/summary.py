"""The cost of a run, compared with plain classifier-free guidance."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from thg.plans.plan import CONDITIONAL, EVALUATED, SKIPPED, Plan


@dataclass(frozen=True)
class Summary:
    """The last run of an enabled pipeline.

    steps: denoiser calls of the run. nfe: network evaluations per sample; cfg_nfe: those of plain CFG.
    evaluations: network evaluations per sample at each step. plan: None where no plan was followed.
    seconds: from the start of the run to the end of its last network call so far, as the CPU sees it (a GPU may lag).
    finished: whether the run reached its last step. note: remarks on the run.
    finite: False if the network's last output contained NaN or infinity.
    layout: how the branches are laid out, for `thg.enable(pipe, layout=...)`; None if unknown.
    checked: what the first guided step has shown about it, in words; empty if it was not checked.
    sections: how often the pipeline set its time steps; plan is that of the last section.
    caches: block caches inside the network, whose savings are not included in these evaluations.
    estimated_error: how far the final latents of each sample are from plain CFG's, relative to their norm, by the run's
        own evaluations; right within a factor of 3 for three quarters of samples on networks that were tried, and
        better after `thg.tune`. None if it cannot be estimated.
    tuned: whether the estimate is that of `thg.tune` for this network; otherwise it is a prior.
    lost: where the estimated error comes from: the step at which a leap ends, and its share in the square of the
        estimate, for each leap.
    """

    pipeline: str
    steps: int
    nfe: int
    cfg_nfe: int
    evaluations: tuple[int, ...]
    seconds: float
    plan: Plan | None = None
    finished: bool = True
    note: str = ""
    finite: bool = True
    sections: int = 1
    caches: tuple[str, ...] = ()
    estimated_error: tuple[float, ...] | None = None
    layout: Any = None
    checked: str = ""
    lost: tuple[tuple[int, float], ...] = ()
    tuned: bool = False

    @property
    def saved(self) -> float:
        """The share of plain CFG's evaluations that was saved."""
        return 1 - self.nfe / self.cfg_nfe if self.cfg_nfe else 0.0

    @property
    def speedup(self) -> float:
        """Ideal speed-up over plain CFG."""
        return self.cfg_nfe / self.nfe if self.nfe else 1.0

    def strip(self) -> str:
        """One mark per step that ran: ● everything, · a part of it (the conditional branch), ○ nothing."""
        most = max(self.evaluations, default=0)
        return "".join(SKIPPED if n == 0 else EVALUATED if n == most else CONDITIONAL for n in self.evaluations)

    def _where(self) -> str:
        """The leaps that have most of the estimated error, if it is not spread over many."""
        worst = sorted(self.lost, key=lambda leap: -leap[1])[:3]
        if sum(share for _, share in worst) < 0.5:
            return ""
        steps = ", ".join(f"{end} ({share:.0%})" for end, share in sorted(worst) if share >= 0.1)
        return f"; most of it from the predictions before step {steps}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        if not self.steps:
            return f"{self.pipeline}: {self.note}"
        lines = [
            f"{self.pipeline}: {self.nfe} network evaluations instead of {self.cfg_nfe} "
            f"({self.saved:.0%} saved, ideal speed-up {self.speedup:.2f}x), {self.seconds:.2f} s"
        ]
        if self.plan is not None:
            lines.append(f"[{self.strip()}]")
        if self.estimated_error is not None and self.finite:
            worst = f"{max(self.estimated_error):.1%}"
            if len(self.estimated_error) > 1:
                worst += f" (the worst of {len(self.estimated_error)})"
            if not self.tuned:
                worst += ", within a factor of 3 (not tuned)"
            lines.append(f"estimated difference from the plain run: {worst}{self._where()}")
        if self.checked:
            lines.append(f"layout: {self.checked}")
        if not self.finished:
            lines.append(f"the run stopped after {len(self.evaluations)} of {self.steps} steps")
        if self.caches:
            lines.append(f"with {' and '.join(self.caches)} inside the network: its savings come on top")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)


def lost_in(found: tuple[list[int], Any] | None) -> tuple[tuple[int, float], ...]:
    """`Summary.lost` from `Leaps.lost`; waits for the device."""
    return () if found is None else tuple(zip(found[0], found[1].tolist(), strict=True))


def combined(pipeline: str, parts: list[Summary]) -> Summary:
    """The summary of a pipeline that ran other pipelines."""
    return Summary(
        pipeline=pipeline,
        steps=sum(part.steps for part in parts),
        nfe=sum(part.nfe for part in parts),
        cfg_nfe=sum(part.cfg_nfe for part in parts),
        evaluations=tuple(n for part in parts for n in part.evaluations),
        seconds=sum(part.seconds for part in parts),
        plan=parts[0].plan if len(parts) == 1 else None,
        finished=all(part.finished for part in parts),
        note="; ".join(part.note for part in parts if part.note),
        finite=all(part.finite for part in parts),
        caches=tuple(dict.fromkeys(name for part in parts for name in part.caches)),
        estimated_error=parts[0].estimated_error if len(parts) == 1 else None,
        tuned=all(part.tuned for part in parts),
    )
