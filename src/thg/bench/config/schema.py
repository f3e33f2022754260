"""The tables of a configuration, and the benchmark that they make together."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from thg.bench.errors import ConfigError
from thg.bench.methods.policy import Policy, check_budget
from thg.bench.methods.registry import methods
from thg.bench.metrics import Sources, metric_names
from thg.bench.strict import FilePath, Table, Texts, Wholes, check, nearest


class Model(Table):
    """Which pipeline: a shipped one by name, or a hub id or folder. Weights are read as safetensors only."""

    shipped: Literal["eps", "flow"] | None = None
    source: str | None = None
    scheduler: str | None = None
    scheduler_options: dict[str, Any] = Field(default_factory=dict)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    variant: str | None = None
    leave_out: Texts = ()
    call: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_both(self) -> Model:
        if (self.shipped is None) == (self.source is None):
            raise ConfigError('model needs exactly one of shipped = "eps" and source = "a hub id or a folder"')
        return self


class Prompts(Table):
    """Where prompts come from: a file, a dataset of the hub, or the shipped models' own."""

    file: FilePath | None = None
    column: str | None = None
    dataset: str | None = None
    split: str = "test"

    @model_validator(mode="after")
    def _one_of_both(self) -> Prompts:
        if self.file is not None and self.dataset is not None:
            raise ConfigError("prompts come either from a file or from a dataset, not from both")
        return self


class References(Table):
    """The real pictures or sounds that set metrics compare with, and statistics files by metric.

    file: the name of a prompt's reference in the folder, with columns of the prompt file: "{file_name}", "{id}.wav".
    """

    folder: FilePath | None = None
    file: str | None = None
    statistics: dict[str, FilePath] = Field(default_factory=dict)

    @field_validator("statistics")
    @classmethod
    def _known(cls, value: dict[str, Path]) -> dict[str, Path]:
        check_metrics(tuple(value))
        return value


class Sheet(Table):
    """The picture of the same prompts across methods."""

    prompts: Wholes = (0, 1, 2, 3)
    methods: Texts = ()
    region: Wholes = ()

    @field_validator("region")
    @classmethod
    def _four(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if value and len(value) != 4:
            raise ConfigError(f"sheet.region must be [left, top, right, bottom] in pixels, not {list(value)}")
        return value


class Storage(Table):
    """What is kept of a sample. files: PNG or WAV; jpeg and latents: less; features: what was measured, alone."""

    keep: Literal["files", "jpeg", "latents", "features"] = "files"
    jpeg_quality: int = Field(default=95, ge=1, le=100)


@dataclass(frozen=True)
class Method:
    """One row of the table. scheduler: another one than the model's."""

    name: str
    policy_name: str
    policy: Policy
    steps: int
    guidance_scale: float
    nfe: int | None
    options: dict[str, Any]
    group: str = ""
    published: dict[str, float] = field(default_factory=dict)
    scheduler: str | None = None
    scheduler_options: dict[str, Any] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The method's name in file names."""
        return slug(self.name)


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def check_metrics(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in metric_names():
            raise ConfigError(f"there is no metric {name!r}{nearest(name, metric_names())}")
    return names


def _read_methods(rows: Any, info: ValidationInfo) -> Any:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError("methods must be an array of tables: write [[methods]] before each")
    if "steps" not in info.data or "guidance_scale" not in info.data:
        return ()  # those have errors of their own
    base = (info.context or {})["base"]
    return tuple(
        _read_method(row, f"methods {number}", base, info.data["steps"], info.data["guidance_scale"])
        for number, row in enumerate(rows, start=1)
    )


def _read_method(row: dict[str, Any], where: str, base: Path, steps: int, guidance_scale: float) -> Method:
    policy_name = row.get("policy")
    if not isinstance(policy_name, str) or policy_name not in methods():
        raise ConfigError(f"{where}.policy is {policy_name!r}{nearest(str(policy_name), methods())}")
    table = check(methods()[policy_name], row, base, where)
    if not slug(table.name):
        raise ConfigError(f"a method needs a name with letters or digits, not {table.name!r}")
    own_steps = table.steps or steps
    if policy_name == "cfg" and table.budget is not None and table.steps is None:
        if table.budget % 2:
            raise ConfigError(
                f"method {table.name!r}: CFG makes two evaluations a step and cannot meet nfe={table.budget}"
            )
        own_steps = table.budget // 2
    if table.scheduler_options and table.scheduler is None:
        raise ConfigError(f"method {table.name!r}: scheduler_options without a scheduler; write both")
    scale = table.guidance_scale or guidance_scale
    policy = table.make_policy(own_steps)
    check_budget(table.name, policy, own_steps, scale, table.budget)
    return Method(
        name=table.name,
        policy_name=policy_name,
        policy=policy,
        steps=own_steps,
        guidance_scale=scale,
        nfe=table.budget,
        options=table.options(),
        group=table.group,
        published=table.paper,
        scheduler=table.scheduler,
        scheduler_options=table.scheduler_options,
    )


class BenchConfig(Table):
    """A whole benchmark. `source`: the values as they were written; `base`: what their paths are relative to."""

    title: str
    notes: str = ""
    steps: int = Field(ge=1)
    guidance_scale: float
    count: int = Field(ge=1)
    seed: int = Field(0, ge=0)
    batch_size: int = Field(16, ge=1)
    model: Model
    prompts: Prompts = Prompts()
    methods: Annotated[tuple[Method, ...], BeforeValidator(_read_methods)] = ()
    reference: str = ""
    metrics: Texts = ("psnr", "ssim")
    networks: dict[str, str] = Field(default_factory=dict)
    references: References = References()
    sheet: Sheet = Sheet()
    storage: Storage = Storage()

    _source: dict[str, Any] = PrivateAttr(default_factory=dict)
    _base: Path = PrivateAttr(default_factory=Path)

    @property
    def source(self) -> dict[str, Any]:
        return self._source

    @property
    def base(self) -> Path:
        return self._base

    @field_validator("guidance_scale")
    @classmethod
    def _guides(cls, value: float) -> float:
        if value <= 1:
            raise ConfigError(f"guidance_scale must be above 1, not {value:g}: at 1 there is no guidance to skip")
        return value

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_metrics(value)

    @field_validator("networks")
    @classmethod
    def _known_networks(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in Sources.names():
                raise ConfigError(f"unknown key {name!r} in networks{nearest(name, Sources.names())}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> BenchConfig:
        if not self.methods:
            raise ConfigError("there is nothing to compare: write one [[methods]] for each row of the table")
        slugs = [method.slug for method in self.methods]
        for method in self.methods:
            if slugs.count(method.slug) > 1:
                raise ConfigError(f"two methods are called {method.name!r} (or nearly so); names must differ")
        names = [method.name for method in self.methods]
        for name in self.sheet.methods:
            if name not in names:
                raise ConfigError(f"sheet.methods: there is no method {name!r}{nearest(name, names)}")
        if self.reference and self.reference not in names:
            raise ConfigError(f"reference: there is no method {self.reference!r}{nearest(self.reference, names)}")
        if not self.reference and all(method.policy_name != "cfg" for method in self.methods):
            raise ConfigError('there is no plain CFG to compare with: add [[methods]] with name and policy = "cfg"')
        if self.model.shipped is None and self.prompts.file is None and self.prompts.dataset is None:
            raise ConfigError(
                'where are the prompts? Write [prompts] with file = "prompts.csv" or dataset = "owner/name"'
            )
        return self

    @property
    def reference_method(self) -> Method:
        """What fidelity is measured to: the named one, or the first plain CFG."""
        if self.reference:
            return self.method(self.reference)
        return next(method for method in self.methods if method.policy_name == "cfg")

    def method(self, name: str) -> Method:
        return next(method for method in self.methods if method.name == name)

    def model_of(self, method: Method) -> Model:
        """The model with the scheduler of a method."""
        if method.scheduler is None:
            return self.model
        own = {"scheduler": method.scheduler, "scheduler_options": method.scheduler_options}
        return self.model.model_copy(update=own)

    def identity(self) -> str:
        """Twelve hex digits that change when, and only when, the pictures would be others."""
        rows = [
            [m.name, m.policy_name, m.steps, m.guidance_scale, m.options]
            + ([m.scheduler, m.scheduler_options] if m.scheduler else [])
            for m in self.methods
        ]
        parts = [self.source.get("model"), self.source.get("prompts"), self.seed, rows]
        value = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(value.encode()).hexdigest()[:12]
