"""The caches of diffusers (`enable_cache`): hooks on the blocks of a transformer, with their state in managers.

Most keep a state per cache context; Pyramid Attention Broadcast keeps one for all calls. Each computes everything when
its state is empty. To force this, one value of the state is removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from thg.errors import UnsupportedPipelineError

# Class name of the deciding hook -> name of the cache, and the value without which it computes everything.
_DECIDERS = {
    "FBCHeadBlockHook": ("FirstBlockCache", "head_block_residual"),
    "MagCacheHeadHook": ("MagCache", "previous_residual"),
    "SeaCacheRootHook": ("SeaCache", "previous_indicator"),
    "PyramidAttentionBroadcastHook": ("PyramidAttentionBroadcast", "cache"),
    "TaylorSeerCacheHook": ("TaylorSeer", None),  # decides by its count of calls alone
}
_REFUSED = "FasterCache"  # both of its hooks


def find_hooks(network: Any) -> Iterator[HookCache]:
    """The cache of diffusers in this network."""
    registries = [vars(module).get("_diffusers_hook") for module in network.modules()]
    found = [hook for registry in registries if registry is not None for hook in registry.hooks.values()]
    if any(type(hook).__name__.startswith(_REFUSED) for hook in found):
        raise UnsupportedPipelineError(
            "FasterCache skips unconditional passes itself, as thg does; use one of them: "
            "pipe.transformer.disable_cache() or thg.disable(pipe)"
        )
    for kind, (name, value) in _DECIDERS.items():
        deciders = [hook for hook in found if type(hook).__name__ == kind]
        if deciders:
            yield HookCache(name, deciders, value)


class HookCache:
    """One cache of diffusers in one run."""

    def __init__(self, name: str, deciders: list[Any], value: str | None) -> None:
        self.name = name
        self._deciders, self._value = deciders, value
        # where the states are kept: in managers, which several hooks may share, or in the hooks
        managers = {id(hook.state_manager): hook.state_manager for hook in deciders if hasattr(hook, "state_manager")}
        self._places = [(manager, "_state_cache") for manager in managers.values()]
        self._places += [(hook, "state") for hook in deciders if not hasattr(hook, "state_manager")]

    @contextmanager
    def conditional(self, refresh: bool) -> Iterator[None]:
        if not refresh:
            yield
            return
        if self._value is not None:
            for state in self._states():
                setattr(state, self._value, None)
            yield
            return
        intervals = [hook.cache_interval for hook in self._deciders]
        try:
            for hook in self._deciders:
                hook.cache_interval = 1
            yield
        finally:
            for hook, interval in zip(self._deciders, intervals, strict=True):
                hook.cache_interval = interval

    @contextmanager
    def unconditional(self) -> Iterator[None]:
        kept = [getattr(owner, name) for owner, name in self._places]
        self.empty()
        try:
            yield
        finally:
            for (owner, name), states in zip(self._places, kept, strict=True):
                setattr(owner, name, states)

    def empty(self) -> None:
        for owner, name in self._places:
            setattr(owner, name, type(getattr(owner, name))())

    def _states(self) -> Iterator[Any]:
        """The states of the calls so far; none of them is that of an unconditional call."""
        for owner, name in self._places:
            states = getattr(owner, name)
            yield from states.values() if isinstance(states, dict) else (states,)
