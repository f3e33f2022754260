"""Putting thg between a pipeline and its networks and scheduler, and taking it out again.

A network keeps its object and its name: its class becomes a subclass, made on the fly, that overrides `__call__` (this
survives `.to`, deepcopy, save_pretrained and offload hooks). A scheduler gets its `set_timesteps` shadowed by an
attribute of the instance, so that its type stays what it is.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thg.adapter import caller as calling
from thg.adapter.takeover import Takeover


class Tap:
    """What is known of one taken network: who has taken it, in which role, and the cache context it is in."""

    def __init__(self) -> None:
        self.users: dict[Takeover, str] = {}  # the takeover and the role: "denoiser", "unconditional" or "control"
        self.context = ""


_taps: weakref.WeakKeyDictionary[torch.nn.Module, Tap] = weakref.WeakKeyDictionary()
_classes: dict[type, type] = {}


def take(network: torch.nn.Module, takeover: Takeover, role: str) -> None:
    """Routes the calls of a network through a takeover."""
    tap = _taps.get(network)
    if tap is None:
        tap = _taps[network] = Tap()
        network.__class__ = _taken_class(type(network))
    tap.users[takeover] = role


def release(network: torch.nn.Module, takeover: Takeover) -> None:
    """Undoes `take`; the network is what it was when the last takeover has gone."""
    tap = _taps.get(network)
    if tap is None:
        return
    tap.users.pop(takeover, None)
    if not tap.users:
        del _taps[network]
        network.__class__ = type(network).__mro__[1]


def _taken_class(cls: type) -> type:
    if cls not in _classes:
        members: dict[str, Any] = {
            "__call__": torch.compiler.disable(_call, recursive=False),  # type: ignore[no-untyped-call]
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        if hasattr(cls, "cache_context"):
            members["cache_context"] = _cache_context
        _classes[cls] = type(cls.__name__, (cls,), members)
    return _classes[cls]


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    plain = functools.partial(_original(self).__call__, self)
    tap = _taps.get(self)
    who = None if tap is None else calling.find(user.pipe for user in tap.users)
    if tap is None or who is None:
        return plain(*args, **kwargs)
    takeover, role = next((user, role) for user, role in tap.users.items() if user.pipe is who.pipe)
    if role == "control":
        return takeover.control(plain, args, kwargs, who)
    return takeover.denoise(plain, args, kwargs, who, "uncond" if role == "unconditional" else tap.context)


@contextmanager
def _cache_context(self: Any, name: str, **kwargs: Any) -> Iterator[None]:
    tap = _taps.get(self)
    with _original(self).cache_context(self, name, **kwargs):
        if tap is None:
            yield
            return
        before, tap.context = tap.context, name
        try:
            yield
        finally:
            tap.context = before


def _original(network: Any) -> Any:
    return type(network).__mro__[1]


class RunStart:
    """Stands in for a scheduler's `set_timesteps`, with its signature, and tells the takeovers of each new run."""

    def __init__(self, scheduler: Any, takeovers: list[Takeover]) -> None:
        self.scheduler = scheduler
        self.takeovers = takeovers
        functools.update_wrapper(self, type(scheduler).set_timesteps)
        self.__signature__ = inspect.signature(functools.partial(type(scheduler).set_timesteps, scheduler))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = type(self.scheduler).set_timesteps(self.scheduler, *args, **kwargs)
        who = calling.find(takeover.pipe for takeover in self.takeovers)
        for takeover in self.takeovers:
            if who is not None and takeover.pipe is who.pipe:
                takeover.begin()
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> RunStart:
        """The copy of a scheduler starts runs of the same pipelines: some pipelines copy theirs in each call."""
        return RunStart(memo.get(id(self.scheduler), self.scheduler), self.takeovers)


def watch(scheduler: Any, takeover: Takeover) -> None:
    """Has the scheduler tell the takeover when a run starts."""
    start = vars(scheduler).get("set_timesteps")
    if isinstance(start, RunStart):
        if takeover not in start.takeovers:
            start.takeovers.append(takeover)
    else:
        scheduler.set_timesteps = RunStart(scheduler, [takeover])


def unwatch(scheduler: Any, takeover: Takeover) -> None:
    """Undoes `watch`."""
    start = vars(scheduler).get("set_timesteps")
    if isinstance(start, RunStart):
        if takeover in start.takeovers:
            start.takeovers.remove(takeover)
        if not start.takeovers:
            del scheduler.set_timesteps
