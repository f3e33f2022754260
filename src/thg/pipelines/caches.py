"""Caches inside a network (DeepCache, cache-dit, `enable_cache` of diffusers): which there are, and how to empty them.

A cache acts on the steps at which the network runs, in a rhythm of its own. It is emptied before and after a run, also
after an interrupted one, so that no run depends on an earlier one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

# The hooks of diffusers' caches, by the beginning of their class's name.
_HOOKS = {
    "FBC": "FirstBlockCache",
    "FasterCache": "FasterCache",
    "MagCache": "MagCache",
    "PyramidAttentionBroadcast": "PyramidAttentionBroadcast",
    "SeaCache": "SeaCache",
    "TaylorSeer": "TaylorSeer",
    "TextKVCache": "TextKVCache",
}


Cache = tuple[str, Callable[[], None]]
"""A cache inside a network: its name, and a function that makes it forget all calls."""


def caches_in(network: Any) -> list[Cache]:
    """The caches of a network."""
    return [*_deepcache(network), *_cache_dit(network), *_hooks(network)]


def _deepcache(network: Any) -> Iterator[Cache]:
    """Its helper is not an attribute of the network: the functions that it installs hold it."""
    for module in network.modules():
        function = inspect.unwrap(vars(module).get("forward", _deepcache))
        if getattr(function, "__qualname__", "").startswith("DeepCacheSDHelper."):
            helper = inspect.getclosurevars(function).nonlocals["self"]
            yield "DeepCache", functools.partial(_empty_helper, helper)
            return


def _empty_helper(helper: Any) -> None:
    helper.cached_output, helper.start_timestep = {}, None


def _cache_dit(network: Any) -> Iterator[Cache]:
    """Its contexts count calls and hold buffers; they are made again."""
    manager = getattr(network, "_context_manager", None)
    if manager is None or not getattr(network, "_is_cached", False):
        return

    def empty() -> None:
        contexts = manager._cached_context_manager
        for context in [contexts[name] for name in network._context_names if name in contexts]:
            manager.new_context(*context._init_args, **context._init_kwargs)

    yield "cache-dit", empty


def _hooks(network: Any) -> Iterator[Cache]:
    """Caches of diffusers are hooks on the network's blocks."""
    registries = [vars(module)["_diffusers_hook"] for module in network.modules() if "_diffusers_hook" in vars(module)]
    found = [hook for registry in registries for hook in registry.hooks.values()]

    def empty() -> None:
        for registry in registries:
            registry.reset_stateful_hooks(recurse=False)

    for beginning, name in _HOOKS.items():
        if any(type(hook).__name__.startswith(beginning) for hook in found):
            yield name, empty
