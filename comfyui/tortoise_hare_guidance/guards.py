"""Detects other patches on a model that need the unconditional branch at every step.

Such a run is plain guidance, and the report says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

INSIDE = ("apply_model", "diffusion_model")  # wrappers around the network itself
ATTENTION = {  # nodes whose attention patches compare the two branches
    "NAGuidance": "Normalized Attention Guidance needs both branches in one batch",
    "SelfAttentionGuidance": "Self-Attention Guidance needs the attention of the unconditional branch",
}
FORMULAS = {  # guidance formulas that are sensitive to a large correction in one step
    "CFGZeroStar": "CFG-Zero* scales the unconditional branch by its similarity to the other",
}


def obstacle(model_options: dict[str, Any]) -> str:
    """Why no evaluation may be skipped with these options; empty if they may."""
    options = model_options.get("transformer_options", {})
    inside = [_name(wrapper) for kind in INSIDE for wrapper in _functions(options.get("wrappers", {}).get(kind))]
    inside.append(_name(model_options.get("model_function_wrapper")))
    if "rel_l1_thresh" in options:  # set by TeaCache
        inside.append("TeaCache")
    cache = next((name for name in inside if "cache" in name.lower()), None)
    if cache is not None:
        return f"a cache inside the network ({cache.split('.')[0]}) needs both branches at every step"
    names = {_name(patch).split(".")[0] for patch in patches(model_options)}
    return next((reason for node, reason in ATTENTION.items() if node in names), "")


def patches(model_options: dict[str, Any]) -> Iterator[Any]:
    """The patches inside the network."""
    options = model_options.get("transformer_options", {})
    return _functions((options.get("patches"), options.get("patches_replace")))


def no_corrector(model_options: dict[str, Any]) -> str:
    """Why the corrector is off with these options; empty if it is not."""
    names = {_name(function).split(".")[0] for function in _functions(model_options.get("sampler_post_cfg_function"))}
    return next((reason for node, reason in FORMULAS.items() if node in names), "")


def _functions(nest: Any) -> Iterator[Any]:
    """All functions in nested dictionaries and lists."""
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, list | tuple):
        for item in nest:
            yield from _functions(item)
    elif callable(nest):
        yield nest


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__) if function is not None else ""
