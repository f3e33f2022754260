"""A make-believe accelerator for machines without one: the device "toy".

Its tensors compute on the CPU, with the same numbers. What matters to a library is as on CUDA: an operation on tensors
of both devices raises, unless the one on the CPU is a single number; `numpy()` raises; and every time that the host has
to wait for the device is noted, with the line of code that made it wait.

It is a tensor subclass on PyTorch's key for devices of other vendors, with its back end in Python (torch >= 2.9).
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "toy"
TORCH = os.path.dirname(torch.__file__) + os.sep
DEVICE = torch.device("cpu")  # replaced below, once the name is registered

_aten = torch.ops.aten
_READS = {  # operations whose result the host needs at once
    _aten._local_scalar_dense.default,
    _aten.is_nonzero.default,
    _aten.equal.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
}
_MAY_MIX = {  # copies between devices, and indices that may lie on the CPU
    _aten._to_copy.default,
    _aten.copy_.default,
    _aten._copy_from.default,
    _aten.index.Tensor,
    _aten.index_put_.default,
}

waits: Counter[str] = Counter()
"""How often the host has waited, by the line of code."""


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """The waits within a block."""
    waits.clear()
    yield waits


def _note_wait() -> None:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, __file__)):
        frame = frame.f_back
    code = frame.f_code if frame is not None else None
    waits["?" if code is None else f"{code.co_filename}:{frame.f_lineno}"] += 1


class ToyTensor(Tensor):
    """A tensor of the device; `host` holds its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> ToyTensor:
        shape, strides, offset = host.shape, host.stride(), host.storage_offset()
        made: Any = Tensor._make_wrapper_subclass(cls, shape, strides, offset, dtype=host.dtype, device=DEVICE)
        made.host = host
        return made

    def __init__(self, host: Tensor) -> None: ...

    def __repr__(self, **_: Any) -> str:
        return f"toy {self.host!r}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = ToyTensor(self.host.clone())
        return torch.nn.Parameter(made, requires_grad=False) if isinstance(self, torch.nn.Parameter) else made

    def tolist(self) -> Any:
        _note_wait()
        return self.host.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a tensor of the device toy has no numpy array: copy it to the CPU first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        values = (*args, *kwargs.values())
        leaves = [leaf for value in values for leaf in (value if isinstance(value, list | tuple) else (value,))]
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if operation not in _MAY_MIX and any(not isinstance(t, ToyTensor) and t.ndim for t in given):
            raise RuntimeError(f"{operation}: tensors of toy:0 and of the CPU in one operation")
        if operation is _aten._fused_sdp_choice.default:
            return 0  # the mathematics written out, whatever the shapes
        target = kwargs.get("device")
        to_host = operation is _aten._to_copy.default and target is not None and torch.device(target).type == "cpu"
        into_host = operation is _aten.copy_.default and not isinstance(args[0], ToyTensor)
        if operation in _READS or to_host or into_host:
            _note_wait()
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        on_host = {name: _map_tensors(_host, value) for name, value in kwargs.items()}
        result = operation(*_map_tensors(_host, args), **on_host)
        if operation is _aten.copy_.default:
            return args[0]
        if to_host:
            return result
        by_host = {id(t.host): t for t in given if isinstance(t, ToyTensor)}

        def on_device(value: Tensor) -> Tensor:
            same = by_host.get(id(value))  # an operation in place returns the tensor that it was given
            return same if same is not None and same.shape == value.shape else ToyTensor(value)

        return _map_tensors(on_device, result)


def _host(tensor: Tensor) -> Tensor:
    return tensor.host if isinstance(tensor, ToyTensor) else tensor


def _map_tensors(change: Any, value: Any) -> Any:
    """Applies a function to the tensors in a value of an operator's signature (several times faster than a pytree)."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_map_tensors(change, item) for item in value])
    return value


class _Module:
    """What torch asks of a device's module: there is one device, and nothing to do for most questions."""

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


# -- what makes tensors out of none, or reads them, is asked of the back end itself


def _empty(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    return ToyTensor(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return ToyTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(source, ToyTensor) and not isinstance(target, ToyTensor):
        _note_wait()
    source, own = (t.host if isinstance(t, ToyTensor) else t for t in (source, target))
    own.copy_(source)
    return target


def _item(value: ToyTensor) -> Any:
    _note_wait()
    return value.host.item()


def _made_on_the_cpu(name: str) -> Any:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(_aten, packet), overload or "default")

    def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
        return ToyTensor(operation(*args, device=torch.device("cpu"), **kwargs))

    return make


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
DEVICE = torch.device(NAME, 0)
_library = torch.library.Library("aten", "IMPL")
_kernels = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "_copy_from": _copy_from,
    "_local_scalar_dense": _item,
}
for _name in ("arange", "arange.start", "arange.start_step", "linspace", "eye", "eye.m", "randperm", "full"):
    _kernels[_name] = _made_on_the_cpu(_name)
for _name, _kernel in _kernels.items():
    _library.impl(_name, _kernel, "PrivateUse1")
