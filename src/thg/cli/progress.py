"""A progress bar over all pictures of a command, updated at each step of a batch."""

from __future__ import annotations

import inspect
from types import TracebackType
from typing import Any

from tqdm import tqdm


class Progress:
    """Shown on terminals only."""

    def __init__(self, pictures: int) -> None:
        layout = "{desc}{percentage:3.0f}% |{bar}| {elapsed}, {remaining} left"
        self._bar = tqdm(total=float(pictures), bar_format=layout, disable=None, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def start(self, what: str, pipe: Any, pictures: int) -> dict[str, Any]:
        """Starts a batch; returns the argument of the pipeline's call that reports its steps, if it accepts one."""
        self._done = self._bar.n + pictures
        self._bar.set_description_str(f"{what} ")
        if "callback_on_step_end" not in inspect.signature(pipe.__call__).parameters:
            return {}

        def on_step_end(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            self._bar.update(pictures / max(pipe.num_timesteps, step + 1))
            return tensors

        return {"callback_on_step_end": on_step_end}

    def finish(self) -> None:
        """Ends the batch."""
        self._bar.update(self._done - self._bar.n)

    def print(self, text: str) -> None:
        """Prints above the bar."""
        self._bar.clear()
        print(text, flush=True)
