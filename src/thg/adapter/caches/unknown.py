"""Other additions to a network, which may be caches: named where thg cannot leap because of them."""

from __future__ import annotations

import inspect
from typing import Any

from thg.adapter.caches.hooks import hooks_of, is_known

_KNOWN = ("diffusers", "transformers", "torch", "accelerate", "peft", "thg", "DeepCache", "cache_dit", "tomesd")
_HOSTS = {"diffusers", "transformers"}


def suspects(network: Any) -> list[str]:
    """What may keep features of all rows: stateful hooks, forward methods that are not the network's own, and modules
    of others around its blocks."""
    found = [name for module in network.modules() for name in (*_replaced(module), *_foreign(network, module))]
    return list(dict.fromkeys([*_stateful(network), *found]))


def counters(network: Any) -> list[str]:
    """What may count the network's calls. Single layers do not: LoRA replaces their forward methods."""
    blocks = [module for module in network.modules() if any(module.children())]
    found = [name for module in blocks for name in (*_replaced(module), *_foreign(network, module, derived=True))]
    return list(dict.fromkeys([*_stateful(network), *found]))


def watchers(network: Any) -> list[str]:
    """Third-party forward hooks of torch. Most only observe, so they are named only when a call fails."""
    hooks = [hook for module in network.modules() for hook in module._forward_hooks.values()]
    return list(dict.fromkeys(_name(hook) for hook in hooks if _origin(hook).split(".")[0] not in _KNOWN))


def _stateful(network: Any) -> list[str]:
    unknown = [hook for hook in hooks_of(network) if hook._is_stateful and not is_known(hook)]
    return [f"the hook {type(hook).__name__}" for hook in unknown]


def _foreign(network: Any, module: Any, derived: bool = False) -> list[str]:
    """A third-party module in a network of diffusers that has layers of its own.

    derived: also if its class is derived from one of diffusers.
    """
    own, *bases = [cls.__module__.split(".")[0] for cls in type(module).__mro__]
    if own in _KNOWN or not type(network).__module__.startswith("diffusers.") or not any(module.children()):
        return []
    return [_name(type(module))] if derived or not set(bases) & _HOSTS else []


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
