"""The caches that thg knows, as one thing with two kinds of calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from thg.adapter.caches.cache_dit import find_cache_dit
from thg.adapter.caches.deepcache import find_deepcache
from thg.adapter.caches.hooks import find_hooks


class BlockCache(Protocol):
    """A cache inside one network, for the length of a run."""

    name: str

    def conditional(self, refresh: bool) -> AbstractContextManager[None]:
        """Around a call with the conditional rows. refresh: everything is computed, and kept for the calls after it."""

    def unconditional(self) -> AbstractContextManager[None]:
        """Around a call with the unconditional rows: everything is computed, and nothing is kept."""


class Caches:
    """All caches inside one network."""

    def __init__(self, parts: tuple[BlockCache, ...] = ()) -> None:
        self.parts = parts

    def __bool__(self) -> bool:
        return bool(self.parts)

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
    """The caches that are active in a network now; an error by name for one that cannot be used with thg.

    order: of the plan's hare. With 2, features that a cache would hold are continued linearly, as the hare is.
    """
    found: list[BlockCache] = [*find_deepcache(network, order), *find_cache_dit(network), *find_hooks(network)]
    return Caches(tuple(found))
