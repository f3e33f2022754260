"""Other additions to a network: named when a call with fewer rows fails, since a cache may be the reason."""

from __future__ import annotations

import inspect
import re
from typing import Any

from thg.adapter.caches.hooks import hooks_of, is_known

_COUNTER = re.compile(r"(^|_)(cnt|count|counter)($|_)|teacache")
_KNOWN = ("diffusers", "transformers", "torch", "accelerate", "peft", "thg", "DeepCache", "cache_dit")


def suspects(network: Any) -> list[str]:
    """Stateful hooks, and forward methods that are not the network's own."""
    unknown = [hook for hook in hooks_of(network) if hook._is_stateful and not is_known(hook)]
    hooks = [f"the hook {type(hook).__name__}" for hook in unknown]
    return list(dict.fromkeys([*hooks, *(name for module in network.modules() for name in _replaced(module))]))


def watchers(network: Any) -> list[str]:
    """Third-party forward hooks of torch. Most only observe, so they are named only when a call fails."""
    hooks = [hook for module in network.modules() for hook in module._forward_hooks.values()]
    return list(dict.fromkeys(_name(hook) for hook in hooks if _origin(hook).split(".")[0] not in _KNOWN))


def counts_calls(network: Any) -> str | None:
    """A third-party forward method on a network that also has something like a call counter, if any."""
    replaced = _replaced(network)
    members = {name: value for cls in reversed(type(network).__mro__) for name, value in vars(cls).items()}
    members |= vars(network)
    counters = [name for name, value in members.items() if _COUNTER.search(name) and isinstance(value, int)]
    return replaced[0] if replaced and counters else None


def _replaced(module: Any) -> list[str]:
    """A third-party forward method, on this object or its class."""
    own = vars(module).get("forward")
    function = inspect.unwrap(own) if own is not None else type(module).forward
    function = getattr(function, "func", function)
    origin = _origin(function)
    if origin.split(".")[0] in _KNOWN or any(origin == cls.__module__ for cls in type(module).__mro__):
        return []
    return [_name(function)]


def _origin(function: Any) -> str:
    return getattr(function, "__module__", None) or ""


def _name(function: Any) -> str:
    return f"{_origin(function)}.{getattr(function, '__qualname__', type(function).__qualname__)}"
