"""The supported caches, behind one interface with two kinds of calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from thg.adapter.caches.cache_dit import find_cache_dit
from thg.adapter.caches.deepcache import find_deepcache
from thg.adapter.caches.hooks import find_hooks


class BlockCache(Protocol):
    """A cache inside one network, for one run."""

    name: str

    def conditional(self, refresh: bool) -> AbstractContextManager[None]:
        """A context for a call with the conditional rows. refresh: everything is computed, and kept for later calls."""

    def unconditional(self) -> AbstractContextManager[None]:
        """A context for a call with the unconditional rows: everything is computed, and nothing is kept."""

    def empty(self) -> None:
        """Forgets all calls: the next one computes everything, also outside these contexts."""


class Caches:
    """All caches inside one network."""

    def __init__(self, parts: tuple[BlockCache, ...] = ()) -> None:
        self.parts = parts

    def __bool__(self) -> bool:
        return bool(self.parts)

    def empty(self) -> None:
        for part in self.parts:
            part.empty()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @contextmanager
    def conditional(self, refresh: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.conditional(refresh))
            yield

    @contextmanager
    def unconditional(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.unconditional())
            yield


def find_caches(network: Any, order: int) -> Caches:
    """The active caches of a network; raises an error for one that cannot be used with thg.

    order: of the plan's hare. With 2, features that a cache would hold constant are extrapolated linearly.
    """
    caches: list[BlockCache] = [*find_deepcache(network, order), *find_cache_dit(network), *find_hooks(network)]
    return Caches(tuple(caches))
