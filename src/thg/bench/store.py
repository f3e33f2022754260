"""Where samples and their measurements are kept: a store that runs share, under the addresses of what made them.

    RUN/config.json                            the configuration, and the path of its store
    STORE/series/<key>/series.json             what determines its samples: model, scheduler, prompts, seed, steps,
                                               policy and the results of its preparation
    STORE/series/<key>/samples/000123.png      a sample (.png or .wav), and
    STORE/series/<key>/samples/000123.json     its record: prompt, seed, evaluations; written last, so a sample is
                                               complete when its record exists
    STORE/series/<key>/timings/000120-*.json   seconds of the batch that begins with this sample; batches of several
                                               series that were timed in turns have the same name
    STORE/series/<key>/measured/<name>/*       rows of scores or features, a file for each measured batch
    STORE/prepared/<key>.json                  results of the preparation (a threshold, a plan), or why it failed

A series is addressed by everything that determines its samples, so that nothing stale is reused, and configurations
that have a method in common share it: model (with a fingerprint of its weights), scheduler, prompts, seed, steps,
guidance scale, policy with all options or its plan, results of its preparation, and versions of the libraries. What
runs through thg also depends on thg's own code, which decides where a planner evaluates and how a leap is corrected,
and a shipped model on the code that reads its prompts: the source itself is part of the address, not a version number
that many states of a development tree share.

File names follow from the content: processes and machines that share a store never write different content to the same
file, need no locks and never wait for each other.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from thg.bench.config import BenchConfig, Method, ModelTable, parse_config
from thg.bench.samples import PromptList, Samples, load_prompts
from thg.bench.tables import digest
from thg.distribution import versions
from thg.errors import THGError
from thg.files import write_atomically
from thg.media import wav_samples
from thg.models import shipped_path
from thg.rows import RowFiles

INDEX_DIGITS = 6
LIBRARIES = ("torch", "diffusers", "transformers")
NOT_IN_SAMPLES = ("bench", "cli", "studio", "plots")
"""Parts of thg that do not change a sample; bench/methods does."""


class RunFolderError(THGError):
    """A run folder that belongs to another run, is incomplete, or cannot be read."""


class Series:
    """The samples of one method with the same settings, by the index of the prompt, and what was prepared for it."""

    def __init__(self, store: Path, config: BenchConfig, method: Method, prompts: str) -> None:
        """prompts: the digest of the list that the indices refer to."""
        self._store, self._count = store, config.count
        self.method = method
        installed = versions()
        used = [*LIBRARIES, *method.implementation.packages]
        self._what: dict[str, Any] = {
            "model": {**asdict(config.model_of(method)), "weights": weights(config.model)},
            "prompts": prompts,
            "seed": config.seed,
            "steps": method.steps,
            "guidance_scale": method.guidance_scale,
            "policy": method.policy,
            "options": method.options,
            "files": _files([p.absolute() for p in method.options.values() if isinstance(p, Path)], Path("/")),
            "versions": {name: installed.get(name, "") for name in used},
        }
        if method.policy != "cfg":
            self._what["code"] = [thg_code(), method.code]
        elif config.model.shipped is not None:
            self._what["code"] = thg_code("models")
        self.parts = store / "prepared" / digest(self._what)  # a folder for the parts of a long preparation

    # -- the preparation

    @property
    def prepared(self) -> dict[str, Any]:
        return read_json(self.parts.with_suffix(".json")) or {}

    def write_prepared(self, values: dict[str, Any]) -> None:
        write_json(self.parts.with_suffix(".json"), values)

    @property
    def left_out(self) -> str:
        """Why the method is skipped here; empty if it is not."""
        return str(self.prepared.get("left_out", ""))

    @property
    def ready(self) -> bool:
        """Whether the method is prepared and not skipped; only then its samples have an address."""
        return not self.left_out and (bool(self.prepared) or not self.method.implementation.needs_preparation)

    @cached_property
    def _address(self) -> tuple[str, dict[str, Any]]:
        assert self.ready
        plan = self.method.implementation.plan_of(self.prepared)
        how = {"policy": "plan", "options": plan.to_dict(), "prepared": {}} if plan else {"prepared": self.prepared}
        return digest({**self._what, **how}), {**self._what, **how}

    @property
    def key(self) -> str:
        return self._address[0]

    @property
    def path(self) -> Path:
        return self._store / "series" / self.key

    # -- the samples

    def done(self) -> set[int]:
        """The indices of the existing samples, by listing the folder once."""
        return {int(path.stem) for path in (self.path / "samples").glob("[0-9]*.json")} if self.ready else set()

    def missing(self) -> set[int]:
        """The indices whose samples are still to be made."""
        return set(range(self._count)) - self.done()

    def write(self, index: int, suffix: str, content: bytes, record: Mapping[str, Any]) -> None:
        """Writes a sample and its record."""
        if not (self.path / "series.json").exists():
            write_json(self.path / "series.json", self._address[1])
        write_atomically(self._sample(index, suffix), content)
        write_json(self._sample(index, ".json"), record)

    def file(self, index: int) -> Path:
        """The file of a sample."""
        sound = self._sample(index, ".wav")
        return sound if sound.exists() else self._sample(index, ".png")

    def record(self, index: int) -> dict[str, Any]:
        record = read_json(self._sample(index, ".json"))
        if record is None:
            raise RunFolderError(f"sample {index} is missing in {self.path}: run thg bench again")
        return record

    def read(self, indices: Sequence[int]) -> torch.Tensor:
        """From their files: pictures as (batch, channels, height, width) bytes, sounds as (batch, time) floats."""
        paths = [self.file(index) for index in indices]
        if paths[0].suffix == ".wav":
            return torch.from_numpy(np.stack([wav_samples(path.read_bytes()) for path in paths]))
        pixels = np.stack([np.atleast_3d(np.asarray(open_picture(path))) for path in paths])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()

    def write_timing(self, index: int, turn: str, count: int, seconds: float) -> None:
        """turn: the same for all series that were made in turns."""
        write_json(
            self.path / "timings" / f"{index:0{INDEX_DIGITS}d}-{turn}.json", {"count": count, "seconds": seconds}
        )

    def seconds(self) -> dict[str, float]:
        """Seconds per sample of each batch that was timed, by its turn."""
        paths = sorted((self.path / "timings").glob("[0-9]*.json"))
        timings = {path.stem: timing for path in paths if (timing := read_json(path))}
        return {turn: timing["seconds"] / timing["count"] for turn, timing in timings.items()}

    def measured(self, name: str) -> RowFiles:
        return RowFiles(self.path / "measured" / name, error=RunFolderError)

    def _sample(self, index: int, suffix: str) -> Path:
        return self.path / "samples" / f"{index:0{INDEX_DIGITS}d}{suffix}"


@dataclass(frozen=True)
class BenchmarkRun:
    """A benchmark, the folder of its report and the store of its samples."""

    config: BenchConfig
    folder: Path
    store: Path
    prompts: PromptList

    @classmethod
    def start(cls, config: BenchConfig, folder: Path, store: Path | None = None) -> BenchmarkRun:
        """Starts or resumes a run. store: by default `store` next to the folder, which other runs share."""
        return cls(config, folder, store or folder.absolute().parent / "store", load_prompts(config))

    @classmethod
    def stored(cls, folder: Path) -> BenchmarkRun:
        """The run of a folder."""
        stored = read_json(folder / "config.json")
        if stored is None or not isinstance(stored.get("config"), dict) or not isinstance(stored.get("store"), str):
            raise RunFolderError(f"{folder} is not the folder of a run: there is no readable config.json in it")
        config = parse_config(stored["config"], Path(stored["base"]))
        return cls(config, folder, Path(stored["store"]), load_prompts(config))

    def open(self) -> None:
        """Writes the configuration into the folder; one that holds another run is an error."""
        config, stored = self.config, read_json(self.folder / "config.json")
        if stored is not None and stored.get("identity") != config.identity():
            raise RunFolderError(
                f"{self.folder} holds another run ({stored.get('config', {}).get('title')!r}), whose pictures differ "
                "from this one's; choose another folder with --out"
            )
        where = {"base": str(config.base), "store": str(self.store.resolve())}
        write_json(self.folder / "config.json", {"identity": config.identity(), "config": config.source, **where})

    def series(self) -> dict[str, Series]:
        """Of every method by name, the reference first. Not known before a model of the hub was downloaded."""
        reference = self.config.reference_method
        methods = sorted(self.config.methods, key=lambda method: method is not reference)
        return {method.name: Series(self.store, self.config, method, self.prompts.digest) for method in methods}

    def ready(self) -> list[Series]:
        """Of the methods that are prepared and not skipped, the reference first."""
        return [series for series in self.series().values() if series.ready]

    def missing_samples(self) -> int:
        """How many samples are missing, not counting skipped methods."""
        return sum(len(series.missing()) for series in self.series().values() if not series.left_out)


# -- what is in files


def open_picture(path: Path) -> Image.Image:
    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except (OSError, SyntaxError, ValueError) as error:
        raise RunFolderError(f"cannot read {path} ({error}); delete its .json and run thg bench again") from None


def check_room(store: Path, samples: Samples, missing: int) -> str:
    """The disk space needed for the missing samples and available; raises an error if it is too little."""
    needed = missing * samples.bytes_on_disk()
    existing = next(folder for folder in (store, *store.resolve().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    size, room = (tqdm.format_sizeof(count, "B") for count in (needed, free))
    if needed > free:
        raise RunFolderError(
            f"{missing} samples take about {size} in {store}, but only {room} are free; choose another disk with "
            "--store, or write a smaller --count"
        )
    return f"{missing} samples to make, about {size} in {store}; {room} are free"


def weights(model: ModelTable, file: str = "model_index.json") -> str:
    """A fingerprint of the model's files: of their content for a folder, the commit for a model of the hub.

    Empty for one that has not been downloaded. file: that every download of it has.
    """
    if model.shipped is not None:
        return _folder(shipped_path(model.shipped))
    assert model.source is not None
    if Path(model.source).is_dir():
        return _folder(Path(model.source))
    from huggingface_hub import try_to_load_from_cache

    try:
        index = try_to_load_from_cache(model.source, file)
    except ValueError:  # not a name that the hub allows; loading it will say so
        return ""
    return Path(index).parent.name if isinstance(index, str) else ""  # the folder of a snapshot is its commit


def _folder(folder: Path) -> str:
    return _files([path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts], folder)


def _files(paths: Iterable[Path], folder: Path) -> str:
    states = [(path, path.stat()) for path in paths]
    return digest({path.relative_to(folder).as_posix(): _content(path, s.st_size, s.st_mtime_ns) for path, s in states})


@lru_cache(maxsize=1024)
def _content(path: Path, size: int, changed: int) -> str:
    """The digest of a file; size and changed: read it again if they differ."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def thg_code(part: str = "", package: Path = Path(__file__).parents[1]) -> str:
    """A digest of the source of thg that makes samples, or of a part of it."""
    parts = [(path, path.relative_to(package).parts) for path in (package / part).rglob("*.py")]
    used = [path for path, p in parts if p[0] not in NOT_IN_SAMPLES or p[:2] == ("bench", "methods")]
    return _files(used, package)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=1, sort_keys=True, default=str) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if the file is missing or not readable."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
