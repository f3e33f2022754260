"""How a pipeline lays out its guidance branches.

`Batched` pipelines send all branches through the network in one call, stacked along the batch; `Sequential` ones call
it once per branch. The layouts of diffusers' own classes are in `layouts.json`, which `docs/make_layouts.py` writes;
that of another pipeline is given as `thg.enable(pipe, plan, layout=thg.Batched())`. Both are checked at the first
guided step of each run (`verify`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from thg.errors import UnsupportedPipelineError
from thg.pipelines.substitute import original_class

DENOISERS = ("unet", "transformer", "prior", "decoder")
"""The usual names of the denoising network in pipelines."""
CONTROL = "controlnet"  # takes the same rows as the denoiser, before it


class Branches:
    """The branches of a layout, in their order. explained: whether what they combine to can be checked."""

    explained: bool
    branches: tuple[str, ...]
    predicted: tuple[str, ...]
    denoisers: tuple[str, ...]
    unconditional: str | None = None

    @property
    def networks(self) -> tuple[str, ...]:
        """The names of all networks that run a branch."""
        return self.denoisers if self.unconditional is None else (*self.denoisers, self.unconditional)

    def at_present(self, pipe: Any) -> Any:
        """The layout in the current call of the pipeline, with guidance on."""
        return self

    @functools.cached_property
    def cond(self) -> int:
        """The place of the conditional branch."""
        return self.branches.index("cond")

    @functools.cached_property
    def skipped(self) -> list[int]:
        """The places of the predicted branches."""
        return [self.branches.index(name) for name in self.predicted]

    @functools.cached_property
    def kept(self) -> list[int]:
        """The places of the branches that a leap evaluates."""
        return [place for place in range(len(self.branches)) if place not in self.skipped]


@dataclass(frozen=True)
class Batched(Branches):
    """All branches in one call.

    branches: their order along the batch. predicted: those that a leap skips.
    explained: whether the input of the scheduler is a combination of their outputs, so that it can be checked.
    """

    branches: tuple[str, ...] = ("uncond", "cond")
    predicted: tuple[str, ...] = ("uncond",)
    denoisers: tuple[str, ...] = DENOISERS
    explained: bool = True

    def __post_init__(self) -> None:
        _require_names("Batched", branches=self.branches, predicted=self.predicted, denoisers=self.denoisers)
        example = 'thg.Batched(branches=("uncond", "cond"), predicted=("uncond",))'
        if len(self.branches) < 2 or "cond" not in self.branches or len(set(self.branches)) < len(self.branches):
            raise UnsupportedPipelineError(
                f"branches={self.branches!r} must name each branch of the batch once, one of them 'cond': {example}"
            )
        for name in self.predicted:
            if name == "cond" or name not in self.branches:
                raise UnsupportedPipelineError(
                    f"predicted={self.predicted!r}: {name!r} is not a branch that a leap can skip; these are "
                    f"{', '.join(repr(own) for own in self.branches if own != 'cond')}: {example}"
                )

    @contextmanager
    def without_predicted(self, pipe: Any) -> Iterator[None]:
        """A context for a network call without the predicted branches."""
        yield


@dataclass(frozen=True)
class Perturbed(Batched):
    """Perturbed-attention guidance: a third branch, whose attention processors depend on the branches in the batch."""

    branches: tuple[str, ...] = ("uncond", "cond", "perturbed")
    explained: bool = False  # the third branch is optional

    def at_present(self, pipe: Any) -> Batched:
        return self if pipe.do_perturbed_attention_guidance else Batched(self.branches[:2])

    @contextmanager
    def without_predicted(self, pipe: Any) -> Iterator[None]:
        layers = pipe.pag_applied_layers
        pipe._set_pag_attn_processor(layers, do_classifier_free_guidance=False)
        try:
            yield
        finally:
            pipe._set_pag_attn_processor(layers, do_classifier_free_guidance=True)


@dataclass(frozen=True)
class Sequential(Branches):
    """One call per branch, the conditional one first.

    unconditional: a separate network for the unconditional branch, if there is one.
    rescales: the pipeline multiplies the network's output by a factor that changes from step to step.
    """

    denoisers: tuple[str, ...] = ("transformer", "transformer_2", "unet")
    unconditional: str | None = None
    branches: tuple[str, str] = ("cond", "uncond")
    rescales: bool = False
    explained: bool = True
    predicted: tuple[str, ...] = field(default=("uncond",), init=False, repr=False)

    def __post_init__(self) -> None:
        _require_names("Sequential", branches=self.branches, denoisers=self.denoisers)
        if self.branches != ("cond", "uncond"):
            raise UnsupportedPipelineError(
                f'branches={self.branches!r} must be ("cond", "uncond"): the conditional output is needed first to '
                "predict the other; in another order the default works, thg.enable(pipe, thg.within(0.01))"
            )


@dataclass(frozen=True)
class Delegates:
    """Runs other pipelines; the named attributes are those whose guidance is accelerated."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """Plans of the guidance term are not supported, with the reason. entirely: no plan is."""

    why: str
    entirely: bool = False


Layout = Batched | Sequential | Delegates | Refused


def in_words(layout: Branches) -> str:
    """A description, such as "one call: uncond, cond"."""
    return f"{'one call' if isinstance(layout, Batched) else 'a call for each'}: {', '.join(layout.branches)}"


def layout_of(pipe: Any) -> Layout | None:
    """The layout of a pipeline by its class, or by the class that it is derived from; None if the table has neither.

    A class with a loop of its own inherits only a layout that is checked in each run.
    """
    cls, table = original_class(pipe), known_layouts()
    for base in cls.__mro__:
        layout = table.get(base.__name__) if base.__module__.startswith("diffusers.") else None
        if layout is not None and (getattr(layout, "explained", False) or cls.__call__ is base.__call__):
            return layout
    return Perturbed() if hasattr(cls, "_set_pag_attn_processor") else None


def unknown_layout(name: str) -> UnsupportedPipelineError:
    """The error for a class that is not in the table."""
    return UnsupportedPipelineError(
        f"thg does not know how {name} lays out its guidance branches, which this plan needs; write "
        "thg.enable(pipe, plan, layout=thg.Batched()) if one network call has them all, unconditional first, or "
        "layout=thg.Sequential() if each has a call of its own, conditional first. The default, "
        "thg.enable(pipe, thg.within(0.01)), needs no layout"
    )


@functools.cache
def known_layouts() -> dict[str, Layout]:
    """The pipeline classes of diffusers in the table, with their layouts."""
    kinds: dict[str, Any] = {"batched": Batched, "sequential": Sequential, "delegates": Delegates, "refused": Refused}
    table: dict[str, Layout] = {}
    for group in json.loads(files("thg.pipelines").joinpath("layouts.json").read_text(encoding="utf-8"))["groups"]:
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in group["options"].items()}
        table.update(dict.fromkeys(group["pipelines"], kinds[group["kind"]](**options)))
    return table


def _require_names(kind: str, **values: Sequence[str]) -> None:
    for option, names in values.items():
        if not isinstance(names, tuple) or not names or not all(isinstance(name, str) for name in names):
            raise UnsupportedPipelineError(f"{option} of thg.{kind} must be a tuple of names, not {names!r}")
