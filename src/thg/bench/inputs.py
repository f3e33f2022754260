"""The inputs of a benchmark: its prompts, and the reference files that belong to them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from thg.bench.config import BenchConfig
from thg.models import SHIPPED
from thg.prompts import DataError, hub_prompts, paired_files, read_prompts

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})


@dataclass(frozen=True)
class PromptList:
    """Prompts (more than `count` if a calibration uses them), and a digest of their source."""

    prompts: list[str]
    digest: str


def load_prompts(config: BenchConfig) -> PromptList:
    """The prompts that indices refer to; fewer than `count` is an error."""
    source, wanted = config.prompts, prompts_wanted(config)
    if source.file is not None:
        read_prompts(source.file, source.column, config.count)  # are there enough?
        prompts = read_prompts(source.file, source.column)
        return PromptList(prompts, _digest("\0".join(prompts)))
    if source.dataset is not None:
        prompts = hub_prompts(source.dataset, source.column, wanted, source.split)
        return PromptList(prompts, _digest(f"{source.dataset}\0{source.split}\0{source.column}"))
    assert config.model.shipped is not None  # the configuration has prompts otherwise
    return PromptList(SHIPPED[config.model.shipped].prompts(wanted), "shipped")


def prompts_wanted(config: BenchConfig) -> int:
    """How many prompts are needed: those that are sampled, or more for a calibration."""
    return max(config.count, *(int(method.options.get("calibrate", 0)) for method in config.methods))


@dataclass(frozen=True)
class ReferenceFiles:
    """The existing references, in order, and the names of missing ones."""

    paths: list[Path]
    missing: list[str]
    folder: Path

    @property
    def complaint(self) -> str:
        """What is missing, in a sentence; empty if nothing is."""
        if not self.folder.is_dir():
            return f"there is no reference folder {self.folder}"
        if not self.missing:
            return "" if self.paths else f"{self.folder} holds no references"
        shown = ", ".join(self.missing[:3]) + (" ..." if len(self.missing) > 3 else "")
        return (
            f"{len(self.missing)} of {len(self.missing) + len(self.paths)} reference files are missing in "
            f"{self.folder}: {shown}"
        )

    @property
    def identity(self) -> dict[str, str]:
        """What the measurements of the references depend on."""
        sizes = "\0".join(f"{path.name} {path.stat().st_size}" for path in self.paths)
        return {"folder": str(self.folder.resolve()), "files": _digest(sizes)}


def reference_files(config: BenchConfig) -> ReferenceFiles | None:
    """The files of [references]: those that belong to the prompts, or all in the folder. None without a folder."""
    references = config.references
    if references.folder is None:
        return None
    if references.file is None:
        return ReferenceFiles(files_below(references.folder), [], references.folder)
    if config.prompts.file is None:
        raise DataError(
            f"references.file = {references.file!r} takes columns of a prompt file; write [prompts] with file"
        )
    wanted = paired_files(config.prompts.file, config.prompts.column, references.file, config.count)
    existing = {name for name in wanted if (references.folder / name).is_file()}
    paths = [references.folder / name for name in wanted if name in existing]
    return ReferenceFiles(paths, [name for name in wanted if name not in existing], references.folder)


def files_below(folder: Path) -> list[Path]:
    """All pictures and sounds below a folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES | {".wav"})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
