"""Subclasses created at run time: an object keeps its identity, name and attributes, and its calls go through thg.

Hooks would be the usual way, but those of diffusers and accelerate replace `forward` and lose patches that were applied
later; a subclass that overrides `__call__` works with `.to`, offload hooks and torch.compile, and leaves no state on
the object. A copy, a pickle or a saved file of such an object has the original class.
"""

from __future__ import annotations

import copyreg
from typing import Any

from thg.errors import THGError

_ORIGINAL = "_thg_original_class"
_subclasses: dict[type, type] = {}


class _EqualToOriginal(type):
    """Makes a subclass equal to the original class, which diffusers' `from_pipe` requires of a network.

    The hash is its own, so that libraries that keep classes in dictionaries (as fully_shard does) distinguish them.
    """

    def __eq__(cls, other: object) -> bool:
        return cls is other or vars(cls).get(_ORIGINAL) is other

    __hash__ = type.__hash__


class _Transparent(_EqualToOriginal):
    """Lets other libraries patch the original class in place of the subclass.

    cache-dit replaces `__call__` of a pipeline's class, sets attributes beside it, and removes both when it is
    disabled. On the subclass itself it would remove thg's `__call__`, and not find its own attributes.
    """

    def __getattribute__(cls, name: str) -> Any:
        seen = type.__getattribute__(cls, _ORIGINAL) if name == "__call__" else cls
        return type.__getattribute__(seen, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(type.__getattribute__(cls, _ORIGINAL), name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(type.__getattribute__(cls, _ORIGINAL), name)


def substitute(value: Any, members: dict[str, Any], *, shared: bool = True) -> None:
    """Gives an object a subclass of its class with these members; does nothing if it already has one.

    shared: objects of one class share the subclass, so that compiled code is valid for all of them. Otherwise a library
        that patches the object's class patches the original one.
    """
    cls = type(value)
    if hasattr(cls, _ORIGINAL):
        return
    subclass = _subclasses.get(cls) if shared else None
    if subclass is None:
        names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
        metaclass: Any = type(cls)
        if metaclass is type:
            metaclass = _EqualToOriginal if shared else _Transparent
        subclass = metaclass(cls.__name__, (cls,), {**names, **members, _ORIGINAL: cls, "__reduce_ex__": _reduce_ex})
    if shared:
        _subclasses[cls] = subclass
    value.__class__ = subclass


def restore(value: Any) -> None:
    """Undoes `substitute`."""
    original = original_class(value)
    if _ORIGINAL in vars(type(value)):
        value.__class__ = original
    elif original is not type(value):
        raise THGError(
            f"{type(value).__name__} was put on top of the class that thg gave to this {original.__name__} (as "
            "fully_shard does). It runs without thg from now on, but its class cannot be restored; undo what came "
            "after thg.enable first, or call thg.enable after it"
        )


def original_class(value: Any) -> Any:
    """The original class of an object, whether or not it was substituted."""
    return getattr(type(value), _ORIGINAL, type(value))


def _reduce_ex(self: Any, protocol: Any) -> Any:
    """Copy and pickle treat the object as an instance of the original class."""
    original = original_class(self)
    reduced = original.__reduce_ex__(self, protocol)
    if isinstance(reduced, str):
        return reduced
    function, arguments, *state = reduced
    if getattr(function, "__name__", "") == "__newobj__":  # pickle requires that this one makes the object's own class
        return (copyreg._reconstructor, (original, object, None), *state)  # type: ignore[attr-defined]
    return (original if function is type(self) else function, arguments, *state)
