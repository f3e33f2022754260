"""Detects other nodes that skip parts of the network or whole calls themselves. Such a run skips nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SKIPPING = {  # in the names of their functions, packs and options, in lower case
    "lazycache": "LazyCache",  # its file is called after EasyCache
    "easycache": "EasyCache",
    "teacache": "TeaCache",
    "rel_l1_thresh": "TeaCache",
    "magcache": "MagCache",
    "wavespeed": "WaveSpeed",
    "spectrum": "Spectrum",
}
CACHE = "cache"  # in the name of a function: one that is not listed
JUMPS = {  # in the names of functions and guiders: what cannot be predicted
    "SkipLayer": "Skip Layer Guidance switches on and off within the run, which cannot be predicted",
    "GeometricCFG": "Geometric CFG takes powers of signed numbers, which jump where a sign changes",
}


def obstacle(guider: Any, model_options: dict[str, Any]) -> str:
    """Why no call may be skipped with this guider and these options; empty if they may."""
    options, all_functions = model_options.get("transformer_options", {}), list(functions(model_options))
    names = [_name(guider), *map(_name, all_functions), *map(str, options)]
    names += [str(key) for wrappers in options.get("wrappers", {}).values() for key in wrappers]
    packs = [str(getattr(function, "__module__", "")).split("custom_nodes")[-1] for function in all_functions]
    text = " ".join([*names, *packs]).lower()
    found = next((name for part, name in SKIPPING.items() if part in text), None)
    found = found or next((name for name in map(_name, all_functions) if CACHE in name.lower()), None)
    if found:
        return f"{found} is on, which skips by itself; remove one of the two nodes"
    return next((reason for part, reason in JUMPS.items() if any(part in name for name in names)), "")


def functions(model_options: dict[str, Any]) -> Iterator[Any]:
    """The functions of all nodes on a model."""
    return filter(callable, leaves(model_options))


def leaves(*roots: Any) -> Iterator[Any]:
    """What is in nested dictionaries, lists and tuples, also in those that hold themselves."""
    todo, seen = [*roots], set[int]()
    while todo:
        item = todo.pop()
        if not isinstance(item, dict | list | tuple):
            yield item
        elif id(item) not in seen:
            seen.add(id(item))
            todo += item.values() if isinstance(item, dict) else item


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
