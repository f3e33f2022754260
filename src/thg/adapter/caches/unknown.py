"""Other additions to a network, which may be caches: named where thg cannot leap because of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from thg.adapter.caches.hooks import hooks_of, is_known

_KNOWN = ("diffusers", "transformers", "torch", "accelerate", "peft", "thg", "DeepCache", "cache_dit", "tomesd")
_HOSTS = {"diffusers", "transformers"}


def suspects(network: Any) -> list[str]:
    """What may keep features of all rows: stateful hooks, forward methods that are not the network's own, and modules
    of others around its blocks."""
    return _additions(network, network.modules())


def counters(network: Any) -> list[str]:
    """What may count the network's calls. Single layers do not: LoRA replaces their forward methods."""
    return _additions(network, [module for module in network.modules() if module._modules], derived=True)


def watchers(network: Any) -> list[str]:
    """Third-party forward hooks of torch. Most only observe, so they are named only when a call fails."""
    hooks = [hook for module in network.modules() for hook in module._forward_hooks.values()]
    return list(dict.fromkeys(_name(hook) for hook in hooks if _origin(hook).split(".")[0] not in _KNOWN))


def _additions(network: Any, modules: Iterable[Any], derived: bool = False) -> list[str]:
    """The third-party parts of a network. derived: also modules of classes that are derived from those of diffusers."""
    unknown = [hook for hook in hooks_of(network) if hook._is_stateful and not is_known(hook)]
    kinds = dict.fromkeys((type(module), vars(module).get("forward"), bool(module._modules)) for module in modules)
    found = [f"the hook {type(hook).__name__}" for hook in unknown]
    found += [_name(function) for cls, own, _ in kinds if _is_replaced(function := _forward(cls, own), cls)]
    if type(network).__module__.startswith("diffusers."):
        found += [_name(cls) for cls, _, has_layers in kinds if has_layers and _is_foreign(cls, derived)]
    return list(dict.fromkeys(found))


def _is_foreign(cls: type, derived: bool) -> bool:
    own, *bases = [base.__module__.split(".")[0] for base in cls.__mro__]
    return own not in _KNOWN and (derived or not set(bases) & _HOSTS)


def _forward(cls: Any, own: Any) -> Any:
    """The forward method of a module. own: that of the object, if it is not that of its class."""
    function = cls.forward if own is None else inspect.unwrap(own)
    return getattr(function, "func", function)


def _is_replaced(function: Any, cls: type) -> bool:
    origin = _origin(function)
    return origin.split(".")[0] not in _KNOWN and all(origin != base.__module__ for base in cls.__mro__)


def _origin(function: Any) -> str:
    return getattr(function, "__module__", None) or ""


def _name(function: Any) -> str:
    return f"{_origin(function)}.{getattr(function, '__qualname__', type(function).__qualname__)}"
