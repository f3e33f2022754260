"""A pipeline that thg is enabled on: a call of it opens a run, which answers the calls of its networks.

Several pipelines may share a patched network; each run has its own plan, and a call outside all runs is not changed.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from thg.errors import ConcurrentRunError, UnsupportedPipelineError
from thg.pipelines.guided import GuidedRun
from thg.pipelines.identity import remembered
from thg.pipelines.layouts import CONTROL, Batched, Sequential
from thg.pipelines.leaping import LeapingRun
from thg.pipelines.run import PipelineRun
from thg.pipelines.substitute import original_class, restore, substitute
from thg.plans.guide import GuideMaker
from thg.plans.planners import Planned
from thg.plans.summary import Summary

# Modules that are not part of a denoising loop, even if a callback calls them there.
_OTHERS = ("vae", "movq", "text_encoder", "image_encoder", "tokenizer", "safety", "feature_extractor", "vocoder")

_current: ContextVar[PipelineRun | None] = ContextVar("thg_run", default=None)


class EnabledPipeline:
    """What was patched, so that it can be restored, and the current run. Keeps neither pipeline nor networks alive.

    maker: what was enabled. layout: of the branches, for plans of the guidance term; None if the whole network leaps.
    tuned: a result of `thg.tune` is followed in place of the maker's plans, if there is one.
    """

    def __init__(
        self, pipe: Any, maker: Planned | GuideMaker, layout: Batched | Sequential | None, *, tuned: bool = False
    ) -> None:
        self.name = type(pipe).__name__
        self._maker, self._layout, self._tuned = maker, layout, tuned
        self.run: PipelineRun | None = None  # the open one
        self._last: PipelineRun | None = None
        self._lock = threading.Lock()
        self.networks: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.redo(pipe)

    def maker(self, pipe: Any) -> Planned | GuideMaker:
        """What the next run follows."""
        found = remembered(pipe) if self._tuned else None
        return self._maker if found is None else Planned(found)

    def _begin(self, pipe: Any, arguments: Mapping[str, Any]) -> PipelineRun:
        """The run of a call with these arguments."""
        maker = self.maker(pipe)
        if self._layout is not None:
            return GuidedRun(self, pipe, self._layout, maker, arguments)
        assert isinstance(maker, Planned)
        return LeapingRun(self, pipe, maker, arguments)

    def redo(self, pipe: Any) -> None:
        """Patches the pipeline, at first or again."""
        self._route(networks_of(pipe, self._layout))
        substitute(pipe, {"__call__": _opening(original_class(pipe).__call__), "__new__": _plain}, shared=False)
        _pipelines[pipe] = self
        self._when_forgotten = weakref.finalize(pipe, self._route, {})
        self._when_forgotten.atexit = False

    def undo(self, pipe: Any) -> None:
        """Restores the pipeline."""
        self._when_forgotten.detach()
        try:
            self._route({})
        finally:
            del _pipelines[pipe]
            restore(pipe)

    def _route(self, networks: dict[torch.nn.Module, str]) -> None:
        """Patches the pipeline's current networks, and restores those that it no longer has."""
        with _routing:
            for network in set(self.networks).difference(networks):
                names = _networks.get(network, {})
                names.pop(self, None)
                if not names and _networks.pop(network, None) is not None:
                    restore(network)
            for network, name in networks.items():
                _networks.setdefault(network, {})[self] = name
                substitute(network, {"__call__": torch.compiler.disable(_answered, recursive=False)})  # type: ignore[no-untyped-call]
            self.networks = weakref.WeakSet(networks)

    @contextmanager
    def opened_run(self, pipe: Any, arguments: Mapping[str, Any]) -> Iterator[None]:
        """A context for a call of the pipeline. Refused before any state changes if another thread is in one."""
        with self._lock:
            before = self.run
            if before is not None and before.thread != threading.get_ident():
                raise ConcurrentRunError(
                    f"this {self.name} is running in another thread; a pipeline and its scheduler hold the state of "
                    "one run. Use a lock, or one pipeline per thread; they can share all but the scheduler: "
                    "type(pipe)(**{**pipe.components, 'scheduler': copy.deepcopy(pipe.scheduler)})"
                )
            self._route(networks_of(pipe, self._layout))
            self.run = self._last = run = self._begin(pipe, arguments)
        token = _current.set(run)
        try:
            with run.opened():
                yield
        finally:
            _current.reset(token)
            self.run = before

    def summary(self) -> Summary:
        """The cost of the last run."""
        if self._last is None:
            return Summary(self.name, 0, 0, 0, (), 0.0, note="enabled, and no run yet")
        return self._last.summary()


# The owners of patched networks, with the network's name in their pipelines, and of enabled pipelines.
_networks: weakref.WeakKeyDictionary[torch.nn.Module, dict[EnabledPipeline, str]] = weakref.WeakKeyDictionary()
_pipelines: weakref.WeakKeyDictionary[Any, EnabledPipeline] = weakref.WeakKeyDictionary()
_routing = threading.RLock()  # threads may share networks; a pipeline may be collected while another one is enabled


def owner_of(pipe: Any) -> EnabledPipeline | None:
    """The owner of an enabled pipeline."""
    return _pipelines.get(pipe)


def networks_of(pipe: Any, layout: Batched | Sequential | None) -> dict[torch.nn.Module, str]:
    """The networks of a pipeline that may run in its denoising loop, with their names; with a layout those in it."""
    if layout is None:
        names = [name for name in vars(pipe) if not any(other in name for other in _OTHERS)]
    else:
        names = [*layout.networks, *([CONTROL] if isinstance(layout, Batched) else [])]
    networks = {part: name for name in names if isinstance(part := getattr(pipe, name, None), torch.nn.Module)}
    if not networks or set(networks.values()) == {CONTROL}:
        raise UnsupportedPipelineError(f"this {type(pipe).__name__} has no network that denoises; load it first")
    return networks


# -- the members of patched objects


def _opening(plain_call: Any) -> Any:
    """A pipeline's `__call__`, which opens a run."""

    @functools.wraps(plain_call)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = original_class(self).__call__  # another library may have patched it since
        owner = _pipelines.get(self)
        if owner is None:
            return plain(self, *args, **kwargs)
        with owner.opened_run(self, _arguments_of(plain, self, *args, **kwargs)):
            return plain(self, *args, **kwargs)

    return call


def _plain(cls: type, *args: Any, **kwargs: Any) -> Any:
    """A pipeline's `__new__`: type(pipe)(**pipe.components) makes a plain pipeline."""
    return cls.__base__(*args, **kwargs)  # type: ignore[misc]


def _arguments_of(call: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a function's call by name, with its defaults; nothing if they do not fit."""
    try:
        bound = inspect.signature(call).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


def _answered(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A network's `__call__`, which the current run answers."""
    names = _networks.get(self, {})
    here = _current.get()
    if here is not None and here.owner in names:
        return here.answer(self, args, kwargs, names[here.owner])
    if here is None:
        for owner in names:
            if owner.run is not None:
                owner.run.calls_outside += 1
    return original_class(self).__call__(self, *args, **kwargs)
