"""The supported caches, behind one interface with two kinds of calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from thg.adapter.caches.cache_dit import find_cache_dit
from thg.adapter.caches.deepcache import find_deepcache
from thg.adapter.caches.hooks import find_hooks
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Guide, Visitor


class BlockCache(Protocol):
    """A cache inside one network, for one run."""

    name: str

    def conditional(self, refresh: bool) -> AbstractContextManager[None]:
        """A context for a call with the conditional rows. refresh: everything is computed, and kept for later calls."""

    def unconditional(self) -> AbstractContextManager[None]:
        """A context for a call with the unconditional rows: everything is computed, and nothing is kept."""

    def empty(self) -> None:
        """Forgets all calls: the next one computes everything, also outside these contexts."""


class Caches(tuple[BlockCache, ...]):
    """All caches inside one network."""

    def conditional(self, refresh: bool) -> AbstractContextManager[None]:
        return _entered(cache.conditional(refresh) for cache in self)

    def unconditional(self) -> AbstractContextManager[None]:
        return _entered(cache.unconditional() for cache in self)

    def empty(self) -> None:
        for cache in self:
            cache.empty()


@contextmanager
def _entered(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def caches_for(network: Any, guide: Guide) -> Caches:
    """The caches of a network in a run with this guide, without what an interrupted run has left in them.

    None if the guide does not leap: then the caches are not changed.
    """
    if guide.plan is not None and guide.plan.nfe == 2 * guide.plan.steps:
        return Caches()
    caches = caches_in(network, 1 if guide.plan is None else guide.plan.hare_order)
    if caches and isinstance(guide, Visitor):
        raise UnsupportedPipelineError(
            f"calibration measures the network itself, and {caches[0].name} is inside this one: disable it, "
            "calibrate, and enable it again"
        )
    return caches


def caches_in(network: Any, order: int = 1) -> Caches:
    """The caches of a network, emptied. order: of the features that they predict; 1 holds them."""
    caches = Caches((*find_deepcache(network, order), *find_cache_dit(network), *find_hooks(network)))
    caches.empty()
    return caches
