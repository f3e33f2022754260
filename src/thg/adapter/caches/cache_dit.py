"""cache-dit on a transformer: its contexts count calls and hold buffers, for both branches of a batch together.

A pipeline with two calls per step has one context for both branches, which distinguishes them by the parity of its call
count; a call that a leap skips must be counted, or the branches are swapped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


def find_cache_dit(network: Any) -> Iterator[CacheDiT]:
    """cache-dit in this network."""
    manager = getattr(network, "_context_manager", None)
    names = getattr(network, "_context_names", None)
    if getattr(network, "_is_cached", False) and manager is not None and names:
        yield CacheDiT(manager, list(names))


class CacheDiT:
    """The contexts of one network in one run."""

    name = "cache-dit"

    def __init__(self, manager: Any, names: list[str]) -> None:
        self._manager = manager
        self._names = names

    @contextmanager
    def conditional(self, refresh: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for context in self._contexts():
                _count_the_skipped(context)
                if refresh:
                    stack.enter_context(_computing_all(context))
            yield

    @contextmanager
    def unconditional(self) -> Iterator[None]:
        manager = self._manager
        before, current = manager._cached_context_manager, manager._current_context
        contexts = self._contexts()
        manager._cached_context_manager = {}
        try:
            self._renew(contexts)
            yield
        finally:
            manager._cached_context_manager, manager._current_context = before, current

    def empty(self) -> None:
        self._renew(self._contexts())

    def _renew(self, contexts: list[Any]) -> None:
        for context in contexts:
            self._manager.new_context(*context._init_args, **context._init_kwargs)

    def _contexts(self) -> list[Any]:
        contexts = self._manager._cached_context_manager
        return [contexts[name] for name in self._names if name in contexts]


def _count_the_skipped(context: Any) -> None:
    """Counts the skipped unconditional call, so that the next call is a conditional one."""
    config = context.cache_config
    first = 1 if config.cfg_compute_first else 0
    if config.enable_separate_cfg and context.transformer_executed_steps % 2 != first:
        context.transformer_executed_steps += 1
        context.accumulated_transformer_executed_steps += 1


@contextmanager
def _computing_all(context: Any) -> Iterator[None]:
    """Configures the context to fill its buffers without using them, within a block."""
    config = context.cache_config
    context.cache_config = dataclasses.replace(config, max_cached_steps=0, steps_computation_mask=None)
    try:
        yield
    finally:
        context.cache_config = config
