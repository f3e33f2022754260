"""Counts the use of a network in a run: rows passed to it, or the work in its layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from thg.errors import UnsupportedPipelineError
from thg.pipelines.layouts import DENOISERS, Batched, Delegates, Sequential, layout_of


class Rows:
    """A counter of rows passed to a network."""

    def __init__(self) -> None:
        self.count = 0

    def pop_all(self) -> int:
        count, self.count = self.count, 0
        return count


@contextmanager
def counted_rows(pipe: Any) -> Iterator[Rows]:
    """Counts the rows of each call of the pipeline's denoisers."""
    rows = Rows()

    def count(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sample = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
        rows.count += len(sample) if sample is not None else 0

    with ExitStack() as hooks:
        for network in denoisers(pipe):
            hooks.enter_context(network.register_forward_pre_hook(count, with_kwargs=True))
        yield rows


@contextmanager
def counted_work(pipe: Any) -> Iterator[Rows]:
    """Counts multiplications in the linear and convolution layers of the denoisers.

    For third-party caches, which skip parts of the network: layers that do not run are not counted.
    """
    work = Rows()

    def count(module: torch.nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        work.count += output.numel() * math.prod(weight.shape[1:])

    kinds = torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d
    with ExitStack() as hooks:
        for layer in (layer for network in denoisers(pipe) for layer in network.modules()):
            if isinstance(layer, kinds):
                hooks.enter_context(layer.register_forward_hook(count))
        yield work


def denoisers(pipe: Any) -> list[torch.nn.Module]:
    """The networks of a pipeline that guidance evaluates twice."""
    layout = layout_of(pipe)
    if isinstance(layout, Delegates):
        return [network for part in layout.parts for network in denoisers(getattr(pipe, part))]
    names = layout.networks if isinstance(layout, Batched | Sequential) else DENOISERS
    networks = [part for name in names if isinstance(part := getattr(pipe, name, None), torch.nn.Module)]
    if not networks:
        raise UnsupportedPipelineError(f"this {type(pipe).__name__} has no denoiser to count")
    return networks
