"""A benchmark as a value: read from one TOML file, checked as a whole before anything runs.

An unknown key is an error that names the key and the nearest known one. Relative paths are relative to the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from thg.bench import tables
from thg.bench.methods import as_policy, citation, method_class
from thg.bench.methods.policy import Policy
from thg.bench.metrics import metric_names
from thg.bench.metrics.package_scripts import NETWORKS, SCRIPTS
from thg.bench.tables import ConfigError, FilePath, Table, is_file, nearest
from thg.errors import PlanError, THGError
from thg.models import ShippedName

SHIPPED_CONFIG = Path(__file__).parent / "shipped.toml"
"""What `thg bench` runs without arguments."""

Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class ModelTable(Table):
    """Which pipeline: a shipped one by name, or a hub id or folder. Weights are read as safetensors only."""

    shipped: ShippedName | None = None
    source: str | None = None
    scheduler: str | None = None
    scheduler_options: dict[str, Any] = field(default_factory=dict)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    variant: str | None = None
    leave_out: tuple[str, ...] = ()
    call: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.shipped is None) == (self.source is None):
            raise ConfigError('model needs exactly one of shipped = "eps" and source = "a hub id or a folder"')


@dataclass(frozen=True)
class Prompts(Table):
    """Where prompts come from: a file, a dataset of the hub, or the shipped models' own."""

    file: FilePath | None = None
    column: str | None = None
    dataset: str | None = None
    split: str = "test"

    def __post_init__(self) -> None:
        if self.file is not None and self.dataset is not None:
            raise ConfigError("prompts come either from a file or from a dataset, not from both")


@dataclass(frozen=True)
class References(Table):
    """The real pictures or sounds that set metrics compare with, and statistics files by metric.

    file: the name of a prompt's reference in the folder, with columns of the prompt file: "{file_name}", "{id}.wav".
    """

    folder: FilePath | None = None
    file: str | None = None
    statistics: dict[str, FilePath] = field(default_factory=dict)

    def __post_init__(self) -> None:
        measured_here = [name for name in metric_names() if name not in SCRIPTS]
        _check_names("metric", self.statistics, measured_here, "references.statistics: ")


@dataclass(frozen=True)
class Sheet(Table):
    """The picture of the same prompts across methods."""

    prompts: tuple[int, ...] = (0, 1, 2, 3)
    methods: tuple[str, ...] = ()
    region: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.region and len(self.region) != 4:
            raise ConfigError(f"sheet.region must be [left, top, right, bottom] in pixels, not {list(self.region)}")


@dataclass(frozen=True)
class MethodTable(Table):
    """The keys of every method in a configuration; the others are the options of its policy."""

    name: str
    policy: str
    steps: Positive | None = None
    scheduler: str | None = None
    scheduler_options: dict[str, Any] = field(default_factory=dict)
    guidance_scale: Annotated[float, Field(gt=1)] | None = None
    group: str = ""
    paper: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not slug(self.name):
            raise ConfigError(f"a method needs a name with letters or digits, not {self.name!r}")
        if self.scheduler_options and self.scheduler is None:
            raise ConfigError(f"method {self.name!r}: scheduler_options without a scheduler; write both")


@dataclass(frozen=True, kw_only=True)
class Method(MethodTable):
    """A row with everything that it takes from the rest of the configuration.

    implementation: its policy with the options. nfe: the exact budget. citation: its paper. code: the digest of its
    own file.
    """

    steps: int
    guidance_scale: float
    implementation: Policy
    nfe: int | None
    options: dict[str, Any]
    citation: str
    code: str


def slug(name: str) -> str:
    """A name without what readers of a table overlook: capital letters and punctuation."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


@dataclass(frozen=True)
class Settings(Table):
    """The keys of a configuration, but for its methods.

    files_from: where its prompts and references can be had, in words.
    """

    title: str
    steps: Positive
    guidance_scale: float
    count: Positive
    model: ModelTable
    notes: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    batch_size: Positive = 16
    prompts: Prompts = field(default_factory=Prompts)
    reference: str = ""
    metrics: tuple[str, ...] = ("psnr", "ssim")
    networks: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    references: References = field(default_factory=References)
    files_from: str = ""
    sheet: Sheet = field(default_factory=Sheet)

    def __post_init__(self) -> None:
        if self.guidance_scale <= 1:
            raise ConfigError(
                f"guidance_scale must be above 1, not {self.guidance_scale:g}: at 1 there is no guidance to skip"
            )
        _check_names("metric", [name for name in self.metrics if not is_file(name)], metric_names())
        tables.check_keys(self.networks, NETWORKS, "networks")
        tables.check_keys(self.packages, SCRIPTS, "packages")
        if self.model.shipped is None and self.prompts.file is None and self.prompts.dataset is None:
            raise ConfigError(
                'where are the prompts? Write [prompts] with file = "prompts.csv" or dataset = "owner/name"'
            )


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Settings):
    """A whole benchmark. `source`: the values as they were written; `base`: what their paths are relative to."""

    methods: tuple[Method, ...]
    source: dict[str, Any]
    base: Path

    @property
    def reference_method(self) -> Method:
        """What fidelity is measured to: the named one, or the first plain CFG."""
        if self.reference:
            return self.method(self.reference)
        return next(method for method in self.methods if method.policy == "cfg")

    def method(self, name: str) -> Method:
        return next(method for method in self.methods if method.name == name)

    def model_of(self, method: Method) -> ModelTable:
        """The model with the scheduler of a method."""
        if method.scheduler is None:
            return self.model
        return replace(self.model, scheduler=method.scheduler, scheduler_options=method.scheduler_options)

    def identity(self) -> str:
        """Twelve hex digits of what is written about the pictures: model, prompts, seed, and how each method runs.

        Names, titles, metrics, `count` and `batch_size` do not change it. It names a run's folder; the samples
        themselves are addressed by more, such as the weights and versions (`thg.bench.store.Series`).
        """
        rows = [[self.model_of(m), m.policy, m.steps, m.guidance_scale, m.options, m.code] for m in self.methods]
        prompts = self.source.get("prompts")
        return tables.digest({"model": self.model, "prompts": prompts, "seed": self.seed, "methods": rows})[:12]


def load_config(path: Path) -> BenchConfig:
    """Reads and checks a TOML file; errors name it."""
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
    except THGError as error:
        raise type(error)(f"{path}: {error}") from None


def parse_config(values: Mapping[str, Any], base: Path) -> BenchConfig:
    """Checks the values of a TOML file. `base`: what its relative paths are relative to."""
    rows = values.get("methods", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError("methods must be an array of tables: write [[methods]] before each")
    settings = tables.validated(Settings, {key: value for key, value in values.items() if key != "methods"}, base)
    for name in filter(is_file, settings.metrics):
        tables.from_file(name, base)  # is it there?
    methods = tuple(_read_method(row, f"methods {number}", base, settings) for number, row in enumerate(rows, start=1))
    config = BenchConfig(**vars(settings), methods=methods, source=dict(values), base=base)
    _check_methods(config)
    return config


def override(config: BenchConfig, **changes: int | None) -> BenchConfig:
    """The same benchmark with some of count, seed and batch_size changed; None leaves a value as it is."""
    given = {key: value for key, value in changes.items() if value is not None}
    return parse_config({**config.source, **given}, config.base)


def _read_method(values: dict[str, Any], where: str, base: Path, settings: Settings) -> Method:
    cls = method_class(values.get("policy"), where, base)
    common = tables.keys(MethodTable)
    tables.check_keys(values, {*common, *tables.keys(cls)}, where)
    row = tables.validated(MethodTable, {key: value for key, value in values.items() if key in common}, base, where)
    chosen: Any = tables.validated(cls, {key: value for key, value in values.items() if key not in common}, base, where)
    options = {key: getattr(chosen, key) for key in tables.keys(cls)}
    steps, scale, nfe = row.steps or settings.steps, row.guidance_scale or settings.guidance_scale, options.get("nfe")
    if row.policy == "cfg" and nfe is not None and row.steps is None:
        steps = nfe // 2  # an odd budget is refused below
    try:
        implementation = as_policy(chosen, steps)
        nfe, evaluations = nfe if implementation.exact else None, implementation.budget(steps, scale)
        if None not in (nfe, evaluations) and evaluations != nfe:
            raise PlanError(
                f"it makes {evaluations} evaluations in {steps} steps, but its budget is nfe={nfe}; write "
                f"nfe={evaluations} or change its plan"
            )
    except THGError as error:
        raise type(error)(f"method {row.name!r}: {error}") from None
    found = {"steps": steps, "guidance_scale": scale, "implementation": implementation, "nfe": nfe, "options": options}
    return Method(**(vars(row) | found), citation=citation(cls), code=tables.code_digest(cls))


def _check_methods(config: BenchConfig) -> None:
    if not config.methods:
        raise ConfigError("there is nothing to compare: write one [[methods]] for each row of the table")
    names = [method.name for method in config.methods]
    slugs = [slug(name) for name in names]
    for name in names:
        if slugs.count(slug(name)) > 1:
            raise ConfigError(f"two methods are called {name!r} (or nearly so); names must differ")
    _check_names("method", config.sheet.methods, names, "sheet.methods: ")
    _check_names("method", [config.reference] if config.reference else [], names, "reference: ")
    if not config.reference and all(method.policy != "cfg" for method in config.methods):
        raise ConfigError('there is no plain CFG to compare with: add [[methods]] with name and policy = "cfg"')


def _check_names(kind: str, names: Any, known: Any, where: str = "") -> None:
    for name in names:
        if name not in known:
            hint = '; your own: "my_metrics.py:MyMetric"' if kind == "metric" else ""
            raise ConfigError(f"{where}there is no {kind} {name!r}{nearest(name, known)}{hint}")
