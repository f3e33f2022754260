"""One call of a network: its arguments, and the same call for other samples or fewer branches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from thg.adapter import rows

Network = functools.partial[Any]  # a network's own `__call__`, bound to it


class Call:
    """A call of a network that has not run yet. `call()` runs it.

    role: the network's role in the pipeline: "denoiser", "unconditional" or "control". name: of that component.
    context: the pipeline's current cache context.
    """

    def __init__(
        self,
        network: Network,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        role: str = "denoiser",
        context: str = "",
        name: str = "",
    ) -> None:
        self.network, self.args, self.kwargs = network, args, kwargs
        self.role, self.context, self.name = role, context, name

    def __call__(self) -> Any:
        return self.network(*self.args, **self.kwargs)

    @property
    def module(self) -> Any:
        """The network."""
        return self.network.args[0]

    @property
    def sample(self) -> Any:
        return rows.first_input(self.args, self.kwargs)

    @property
    def time(self) -> Any:
        return rows.timestep(self.args, self.kwargs)

    @property
    def rows(self) -> int:
        """Rows in the batch."""
        return rows.count(self.args, self.kwargs)

    def with_sample(self, sample: Any, time: Any) -> Call:
        """The same call for another sample at another time."""
        return self._with(*rows.with_sample(self.args, self.kwargs, sample, time))

    def keeping(self, branches: Sequence[int], of: int) -> Call:
        """The same call with only some of its branches."""
        return self._with(*rows.cut(self.args, self.kwargs, self.rows, of, branches))

    def kept(self) -> Call:
        """A copy of the call that can be made again later."""
        args, kwargs = rows.own_lists(self.args, self.kwargs)
        return self._with(tuple(args), kwargs)

    def answered_by(self, network: Network) -> Call:
        """The same call of another network."""
        return Call(network, self.args, self.kwargs, self.role, self.context, self.name)

    def _with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return Call(self.network, args, kwargs, self.role, self.context, self.name)
