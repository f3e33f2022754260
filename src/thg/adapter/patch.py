"""Routes the calls of pipelines and networks through thg, and restores both.

A pipeline's call opens a run; a network's call is answered by the run that it comes from. Several pipelines may share a
patched network; each run has its own plan, and a call outside all runs is not changed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from thg.adapter.call import Call
from thg.adapter.classes import original_class, restore, substitute
from thg.adapter.stated import arguments_of
from thg.plans.report import Summary


class OpenRun(Protocol):
    """A call of an enabled pipeline that is under way.

    context: the pipeline's current cache context. calls_outside: network calls from other threads or tasks meanwhile.
    """

    @property
    def owner(self) -> Any: ...
    @property
    def thread(self) -> int: ...

    context: str
    calls_outside: int

    def answer(self, call: Call) -> Any:
        """Answers a call of one of the pipeline's networks."""

    def opened(self) -> AbstractContextManager[None]:
        """A context for the pipeline's call. It frees all tensors; the summary remains available."""

    def summary(self) -> Summary:
        """The cost of the run."""


class Owner(Protocol):
    """A pipeline that thg is enabled on."""

    @property
    def run(self) -> OpenRun | None:
        """The open one."""

    @property
    def maker(self) -> Any:
        """What was enabled."""

    def opened_run(self, pipe: Any, arguments: Mapping[str, Any]) -> AbstractContextManager[None]:
        """A context for a call of the pipeline with these arguments."""

    def undo(self, pipe: Any) -> None:
        """Restores the pipeline."""

    def redo(self, pipe: Any) -> None:
        """Patches the pipeline again."""

    def summary(self) -> Summary:
        """The cost of the last run."""


Names = dict[Owner, str]  # of a network, in the pipeline of each owner

current: ContextVar[OpenRun | None] = ContextVar("thg_run", default=None)
_networks: weakref.WeakKeyDictionary[torch.nn.Module, Names] = weakref.WeakKeyDictionary()
_pipelines: weakref.WeakKeyDictionary[Any, Owner] = weakref.WeakKeyDictionary()


# -- pipelines


def owner_of(pipe: Any) -> Owner | None:
    """The owner of an enabled pipeline."""
    return _pipelines.get(pipe)


def route_calls(pipe: Any, owner: Owner) -> None:
    """Makes each call of the pipeline open a run of this owner."""

    @functools.wraps(original_class(pipe).__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = original_class(self).__call__  # another library may have patched it since
        found = _pipelines.get(self)
        if found is None:
            return plain(self, *args, **kwargs)
        with found.opened_run(self, arguments_of(plain, self, *args, **kwargs)):
            return plain(self, *args, **kwargs)

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        """type(pipe)(**pipe.components) makes a plain pipeline."""
        return cls.__base__(*args, **kwargs)  # type: ignore[misc]

    substitute(pipe, {"__call__": call, "__new__": new}, shared=False)
    _pipelines[pipe] = owner


def restore_calls(pipe: Any) -> None:
    """Undoes `route_calls`."""
    del _pipelines[pipe]
    restore(pipe)


# -- networks


def acquire(network: torch.nn.Module, owner: Owner, name: str) -> None:
    """Routes the calls of a network to the runs of a owner."""
    members: dict[str, Any] = {"__call__": torch.compiler.disable(_call, recursive=False)}  # type: ignore[no-untyped-call]
    if hasattr(network, "cache_context"):
        members["cache_context"] = _cache_context
    substitute(network, members)
    _networks.setdefault(network, {})[owner] = name


def release(network: torch.nn.Module, owner: Owner) -> None:
    """Undoes `acquire`; the network is restored when no owner is left."""
    names = _networks.get(network)
    if names is None:
        return
    names.pop(owner, None)
    if not names:
        del _networks[network]
        restore(network)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    plain = functools.partial(original_class(self).__call__, self)
    names = _networks.get(self, {})
    here = current.get()
    if here is not None and here.owner in names:
        return here.answer(Call(plain, args, kwargs, names[here.owner], here.context))
    if here is None:
        for owner in names:
            if owner.run is not None:
                owner.run.calls_outside += 1
    return plain(*args, **kwargs)


@contextmanager
def _cache_context(self: Any, name: str, **kwargs: Any) -> Iterator[None]:
    here = current.get()
    with original_class(self).cache_context(self, name, **kwargs):
        if here is None:
            yield
            return
        before, here.context = here.context, name
        try:
            yield
        finally:
            here.context = before
