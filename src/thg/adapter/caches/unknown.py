"""What else has been put into a network: named when a call with fewer rows breaks, since a cache may be the reason."""

from __future__ import annotations

import inspect
import re
from typing import Any

from thg.adapter.caches.hooks import hooks_of, is_known

_COUNTER = re.compile(r"(^|_)(cnt|count|counter)($|_)|teacache")
_KNOWN = ("diffusers", "transformers", "torch", "accelerate", "peft", "thg", "DeepCache", "cache_dit")


def suspects(network: Any) -> list[str]:
    """Hooks with a memory, and forward methods that are not the network's own, as a person would look for them."""
    unknown = [hook for hook in hooks_of(network) if hook._is_stateful and not is_known(hook)]
    hooks = [f"the hook {type(hook).__name__}" for hook in unknown]
    return list(dict.fromkeys([*hooks, *(name for module in network.modules() for name in _replaced(module))]))


def watchers(network: Any) -> list[str]:
    """Forward hooks of torch from elsewhere. Most only look on, so they are named when a call breaks, not before."""
    hooks = [hook for module in network.modules() for hook in module._forward_hooks.values()]
    return list(dict.fromkeys(_name(hook) for hook in hooks if _origin(hook).split(".")[0] not in _KNOWN))


def counts_calls(network: Any) -> str | None:
    """A forward method from elsewhere on a network that has something like a counter beside it, if there is one."""
    replaced = _replaced(network)
    members = {name: value for cls in reversed(type(network).__mro__) for name, value in vars(cls).items()}
    members |= vars(network)
    counters = [name for name, value in members.items() if _COUNTER.search(name) and isinstance(value, int)]
    return replaced[0] if replaced and counters else None


def _replaced(module: Any) -> list[str]:
    """A forward method from elsewhere, on this object or on its class."""
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
