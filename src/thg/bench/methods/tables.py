"""The table of a method in a configuration: its name, its policy and the policy's options."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import Field, create_model

from thg.bench.methods.ours import Guided
from thg.bench.methods.policy import Policy
from thg.bench.strict import Table


class MethodTable(Table):
    """The options of every method; the fields of a subclass are the options of its policy."""

    name: str
    policy: str
    steps: int | None = Field(None, ge=1)
    scheduler: str | None = None
    scheduler_options: dict[str, Any] = Field(default_factory=dict)
    guidance_scale: float | None = Field(None, gt=1)
    group: str = ""
    paper: dict[str, float] = Field(default_factory=dict)

    @abstractmethod
    def make_policy(self, steps: int) -> Policy:
        """The policy for a run with this number of steps."""

    @property
    def budget(self) -> int | None:
        """The exact number of evaluations, if the method has one."""
        return getattr(self, "nfe", None)

    def options(self) -> dict[str, Any]:
        """The policy's options, given or default."""
        own = [name for name in type(self).model_fields if name not in MethodTable.model_fields]
        return {name: getattr(self, name) for name in own}


def guided(cls: Any) -> type[MethodTable]:
    """The table of a dataclass with `guide(run)`: its fields are the options; an option `nfe` is an exact budget."""

    class GuidedTable(MethodTable):
        def make_policy(self, steps: int) -> Policy:
            return Guided(cls(**self.options()), str(getattr(cls, "paper", "") or _first_line(cls)))

    return _with_options(cls, GuidedTable)


def outside(cls: Any) -> type[MethodTable]:
    """The table of a third-party cache, a subclass of `thg.bench.methods.outside.Outside`; it has no exact budget."""

    class OutsideTable(MethodTable):
        def make_policy(self, steps: int) -> Policy:
            policy: Policy = cls(**self.options())
            return policy

    return _with_options(cls, OutsideTable, leave_out=("nfe",))


def _with_options(cls: Any, table: type[MethodTable], leave_out: tuple[str, ...] = ()) -> type[MethodTable]:
    hints = get_type_hints(cls)
    options: dict[str, Any] = {}
    for field in fields(cls):
        if field.name not in leave_out:
            required = field.name == "nfe"
            options[field.name] = (hints[field.name], Field(ge=1) if required else field.default)
    model: type[MethodTable] = create_model(cls.__name__, __base__=table, **options)
    return model


def _first_line(cls: Any) -> str:
    text = str(cls.__doc__ or cls.__name__)
    return text.strip().splitlines()[0].rstrip(".")
