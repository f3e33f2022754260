"""The schedulers that a model can run with: those of its own family, with its own settings.

A model that predicts noise and one that predicts a flow need different schedulers, or the same with other options;
what does not fit the model is not offered.
"""

from __future__ import annotations

from typing import Any, Final

from thg.adapter.scheduler_table import SCHEDULERS
from thg.errors import THGError

NO_MU: Final = {"FlowMatchHeunDiscreteScheduler"}  # cannot shift its times with the size of the picture


def offered(flow: bool) -> dict[str, str]:
    """Class name and label of the schedulers for a model that predicts a flow, or for any other."""
    kind = "flow" if flow else "epsilon"
    return {row.name: row.label for row in SCHEDULERS.values() if row.option and kind in row.predicts}


class Schedulers:
    """Those of one model. own: the one that it came with; labels: class name and label of each, its own first."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.own_name = type(own).__name__
        self.flow = self.own_name.startswith("FlowMatch") or bool(own.config.get("use_flow_sigmas"))
        labels = offered(self.flow)
        fitting = {name: label for name, label in labels.items() if self._fits(name)}
        self.labels = {self.own_name: labels.get(self.own_name, self.own_name.removesuffix("Scheduler"))} | fitting

    def _fits(self, name: str) -> bool:
        if self.flow:
            return name not in NO_MU or not self.own.config.get("use_dynamic_shifting")
        return name in {cls.__name__ for cls in self.own.compatibles}

    def make(self, name: str | None) -> Any:
        """A fresh scheduler of this class with the model's settings; None is the model's own class."""
        if name is None or name == self.own_name:
            return type(self.own).from_config(self.own.config)
        if name not in self.labels:
            kind = "a flow" if self.flow else "noise"
            raise THGError(
                f"the scheduler {name!r} does not fit this model, which predicts {kind}; these do: "
                f"{', '.join(self.labels)}"
            )
        import diffusers

        return getattr(diffusers, name).from_config(self.own.config, **self._options(name))

    def _options(self, name: str) -> dict[str, Any]:
        """What the settings of the model's own scheduler do not say to one of another family."""
        if not self.flow:
            return {}
        config = self.own.config
        shift = config.get("shift") or config.get("flow_shift") or 1.0
        if name.startswith("FlowMatch"):
            return {"shift": shift}
        return {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": shift}

    def source(self, name: str | None) -> list[str]:
        """The lines of Python that put this scheduler into `pipe`; none for its own."""
        if name is None or name == self.own_name:
            return []
        options = "".join(f", {key}={value!r}" for key, value in self._options(name).items())
        return [
            f"from diffusers import {name}",
            f"pipe.scheduler = {name}.from_config(pipe.scheduler.config{options})",
        ]
