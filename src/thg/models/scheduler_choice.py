"""The schedulers that a model can use: those of its own family, with its own settings.

A model that predicts noise and one that predicts a flow need different schedulers, or the same with other options;
schedulers that do not fit the model are not offered.
"""

from __future__ import annotations

from typing import Any, Final

from thg.errors import THGError
from thg.ode.schedulers import OFFERED, by_option, option_names

NO_MU: Final = {"FlowMatchHeunDiscreteScheduler"}  # cannot shift its times with the size of the picture


def offered(flow: bool) -> dict[str, str]:
    """Key and label of the schedulers for a flow model, or for a noise model."""
    kind = "flow" if flow else "epsilon"
    return {key: row.label for key, row in OFFERED.items() if kind in row.predicts}


class Schedulers:
    """The schedulers of one model. original: its own one; labels: key and label of each, the original first.

    A key is the name of a class, or of a variant of it in the table of schedulers.
    """

    def __init__(self, original: Any) -> None:
        self.original = original
        self.original_name = type(original).__name__
        self.flow = self.original_name.startswith("FlowMatch") or bool(original.config.get("use_flow_sigmas"))
        self.predicts = "a flow" if self.flow else "noise"
        labels, name = offered(self.flow), self.original_name
        fitting = {key: label for key, label in labels.items() if self._fits(key)}
        self.labels = {name: labels.get(name, name.removesuffix("Scheduler"))} | fitting

    def _fits(self, key: str) -> bool:
        name = OFFERED[key].name
        if self.flow:
            return name not in NO_MU or not self.original.config.get("use_dynamic_shifting")
        return name in {cls.__name__ for cls in self.original.compatibles}

    def make(self, key: str | None) -> Any:
        """A fresh scheduler of this kind with the model's settings; None is the model's own class."""
        if key is None or key == self.original_name:
            return type(self.original).from_config(self.original.config)
        if key not in self.labels:
            raise THGError(
                f"the scheduler {key!r} does not fit this model, which predicts {self.predicts}; these do: "
                f"{', '.join(self.labels)}"
            )
        import diffusers

        return getattr(diffusers, OFFERED[key].name).from_config(self.original.config, **self._options(key))

    def _options(self, key: str) -> dict[str, Any]:
        """The options that a scheduler of another family needs in addition to the model's own settings."""
        settings: dict[str, Any] = dict(OFFERED[key].settings)
        if not self.flow:
            return settings
        config = self.original.config
        shift = config.get("shift") or config.get("flow_shift") or 1.0
        if key.startswith("FlowMatch"):
            return {"shift": shift}
        return {**settings, "use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": shift}

    def source(self, key: str | None) -> list[str]:
        """The Python code that sets this scheduler on `pipe`; empty for its own."""
        if key is None or key == self.original_name:
            return []
        name = OFFERED[key].name
        options = "".join(f", {option}={value!r}" for option, value in self._options(key).items())
        return [
            f"from diffusers import {name}",
            f"pipe.scheduler = {name}.from_config(pipe.scheduler.config{options})",
        ]


def scheduler_by_option(name: str, original: Any) -> Any:
    """The scheduler that `--scheduler` names, for a model with another one."""
    schedulers = Schedulers(original)
    key = by_option(name, schedulers.flow).key if name in option_names() else None
    if key not in schedulers.labels:
        fitting = ", ".join(OFFERED[key].option for key in schedulers.labels if key in OFFERED)
        problem = "is unknown" if key is None else "does not fit"
        raise THGError(f"--scheduler {name} {problem}; for this model, which predicts {schedulers.predicts}: {fitting}")
    return schedulers.make(key)
