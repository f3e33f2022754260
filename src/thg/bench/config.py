"""A benchmark as a value: read from one TOML file, checked as a whole before anything runs.

An unknown key is an error that names the key and the nearest known one. Relative paths are relative to the file.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from thg.bench.errors import ConfigError
from thg.bench.methods import Policy, check_budget
from thg.bench.metrics import METRIC_NAMES, Sources
from thg.bench.policy_options import POLICIES, read_policy
from thg.bench.table import Table, nearest

SHIPPED_CONFIG = Path(__file__).parent / "shipped.toml"
"""What `thg bench` runs without arguments."""


@dataclass(frozen=True)
class Model:
    """Which pipeline: a shipped one by name, or a hub id or folder. Weights are read as safetensors only."""

    shipped: str | None = None
    source: str | None = None
    scheduler: str | None = None
    scheduler_options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    variant: str | None = None
    leave_out: tuple[str, ...] = ()
    call: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompts:
    """Where prompts come from: a file, a dataset of the hub, or the shipped models' own."""

    file: Path | None = None
    column: str | None = None
    dataset: str | None = None
    split: str = "test"


@dataclass(frozen=True)
class References:
    """The real pictures or sounds that set metrics compare with, and statistics files by metric."""

    folder: Path | None = None
    statistics: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Sheet:
    """The picture of the same prompts across methods."""

    prompts: tuple[int, ...] = (0, 1, 2, 3)
    methods: tuple[str, ...] = ()
    region: tuple[int, ...] = ()


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    name: str
    policy_name: str
    policy: Policy
    steps: int
    guidance_scale: float
    nfe: int | None
    options: dict[str, Any]
    group: str = ""
    published: dict[str, float] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The method's name in file names."""
        return slug(self.name)


@dataclass(frozen=True)
class BenchConfig:
    """A whole benchmark. `source`: the values as they were written; `base`: what their paths are relative to."""

    title: str
    model: Model
    prompts: Prompts
    count: int
    seed: int
    batch_size: int
    steps: int
    guidance_scale: float
    reference: str
    methods: tuple[Method, ...]
    metrics: tuple[str, ...]
    networks: dict[str, str]
    references: References
    sheet: Sheet
    notes: str
    source: dict[str, Any]
    base: Path

    def method(self, name: str) -> Method:
        return next(method for method in self.methods if method.name == name)

    def identity(self) -> str:
        """Twelve hex digits that change when, and only when, the pictures would be others."""
        methods = [[m.name, m.policy_name, m.steps, m.guidance_scale, m.options] for m in self.methods]
        parts = [self.source.get("model"), self.source.get("prompts"), self.seed, methods]
        value = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(value.encode()).hexdigest()[:12]


def load_config(path: Path) -> BenchConfig:
    """Reads and checks a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    try:
        return parse_config(values, path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(values: dict[str, Any], base: Path) -> BenchConfig:
    """Checks the values of a TOML file. `base`: what its relative paths are relative to."""
    top = Table(values, "", base)
    steps = top.whole("steps", at_least=1)
    guidance_scale = top.number("guidance_scale")
    if guidance_scale <= 1:
        raise ConfigError(f"guidance_scale must be above 1, not {guidance_scale:g}: at 1 there is no guidance to skip")
    methods = tuple(_method(table, steps, guidance_scale, base) for table in top.tables("methods"))
    config = BenchConfig(
        title=top.text("title"),
        model=_model(top.table("model")),
        prompts=_prompts(top.table("prompts")),
        count=top.whole("count", at_least=1),
        seed=top.whole("seed", 0),
        batch_size=top.whole("batch_size", 16, at_least=1),
        steps=steps,
        guidance_scale=guidance_scale,
        reference=_reference(top.text("reference", None), methods),
        methods=methods,
        metrics=_metrics(top.texts("metrics", ("psnr", "ssim"))),
        networks=_networks(top.table("networks")),
        references=_references(top.table("references")),
        sheet=_sheet(top.table("sheet"), [method.name for method in methods]),
        notes=top.text("notes", ""),
        source=values,
        base=base,
    )
    top.close()
    if config.model.shipped is None and config.prompts.file is None and config.prompts.dataset is None:
        raise ConfigError('where are the prompts? Write [prompts] with file = "prompts.csv" or dataset = "owner/name"')
    return config


def override(config: BenchConfig, **changes: Any) -> BenchConfig:
    """The same benchmark with some of count, seed and batch_size changed; None leaves a value as it is."""
    changes = {key: value for key, value in changes.items() if value is not None}
    for key, value in changes.items():
        if value < (0 if key == "seed" else 1):
            raise ConfigError(f"{key} must be at least {0 if key == 'seed' else 1}, not {value}")
    return replace(config, **changes, source={**config.source, **changes})


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def _model(table: Table) -> Model:
    model = Model(
        shipped=table.choice("shipped", ("eps", "flow"), None),
        source=table.text("source", None),
        scheduler=table.text("scheduler", None),
        scheduler_options=table.values("scheduler_options"),
        dtype=table.choice("dtype", ("float32", "float16", "bfloat16"), "float32"),
        variant=table.text("variant", None),
        leave_out=table.texts("leave_out", ()),
        call=table.values("call"),
    )
    table.close()
    if (model.shipped is None) == (model.source is None):
        raise ConfigError('model needs either shipped = "eps" or source = "a hub id or a folder", and one of them')
    return model


def _prompts(table: Table) -> Prompts:
    prompts = Prompts(
        file=table.path("file"),
        column=table.text("column", None),
        dataset=table.text("dataset", None),
        split=table.text("split", "test"),
    )
    table.close()
    if prompts.file is not None and prompts.dataset is not None:
        raise ConfigError("prompts come either from a file or from a dataset, not from both")
    return prompts


def _references(table: Table) -> References:
    names = table.values("statistics")
    statistics = table.table("statistics")
    references = References(
        folder=table.path("folder"), statistics={name: path for name in names if (path := statistics.path(name))}
    )
    table.close()
    _metrics(tuple(references.statistics))
    return references


def _sheet(table: Table, names: list[str]) -> Sheet:
    sheet = Sheet(
        prompts=table.wholes("prompts", (0, 1, 2, 3)),
        methods=table.texts("methods", ()),
        region=table.wholes("region", ()),
    )
    table.close()
    for name in sheet.methods:
        if name not in names:
            raise ConfigError(f"sheet.methods: there is no method {name!r}{nearest(name, names)}")
    if sheet.region and len(sheet.region) != 4:
        raise ConfigError(f"sheet.region must be [left, top, right, bottom] in pixels, not {list(sheet.region)}")
    return sheet


def _networks(table: Table) -> dict[str, str]:
    """Where the metrics' networks are; the names are those of `thg.bench.metrics.Sources`."""
    names = [source.name for source in fields(Sources) if source.name != "judge"]
    found = {name: table.text(name, None) for name in names}
    table.close()
    return {name: value for name, value in found.items() if value is not None}


def _metrics(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in METRIC_NAMES:
            raise ConfigError(f"there is no metric {name!r}{nearest(name, METRIC_NAMES)}")
    return names


def _method(table: Table, steps: int, guidance_scale: float, base: Path) -> Method:
    name = table.text("name")
    if not slug(name):
        raise ConfigError(f"a method needs a name with letters or digits, not {name!r}")
    policy_name = table.choice("policy", tuple(POLICIES))
    own_steps = table.whole("steps", None, at_least=1)
    own_scale = table.number("guidance_scale", guidance_scale)
    group = table.text("group", "")
    published = table.numbers("paper")
    nfe, policy, options = read_policy(policy_name, table, own_steps or steps)
    if policy_name == "cfg" and nfe is not None and own_steps is None:
        if nfe % 2:
            raise ConfigError(f"method {name!r}: CFG makes two evaluations a step and cannot meet nfe={nfe}")
        own_steps = nfe // 2
    method_steps = own_steps or steps
    table.close()
    check_budget(name, policy, method_steps, own_scale, nfe)
    return Method(name, policy_name, policy, method_steps, own_scale, nfe, options, group, published)


def _reference(name: str | None, methods: tuple[Method, ...]) -> str:
    if not methods:
        raise ConfigError("there is nothing to compare: write one [[methods]] for each row of the table")
    slugs = [method.slug for method in methods]
    for method in methods:
        if slugs.count(method.slug) > 1:
            raise ConfigError(f"two methods are called {method.name!r} (or nearly so); names must differ")
    names = [method.name for method in methods]
    if name is None:
        name = next((method.name for method in methods if method.policy_name == "cfg"), None)
        if name is None:
            raise ConfigError('there is no plain CFG to compare with: add [[methods]] with name and policy = "cfg"')
    if name not in names:
        raise ConfigError(f"reference: there is no method {name!r}{nearest(name, names)}")
    return name
