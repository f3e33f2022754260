"""The table of layouts is what its script makes of the installed diffusers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import diffusers
import pytest

import thg
from thg.pipelines.layouts import Batched, Refused, Sequential, known_layouts, layout_of

SCRIPT = Path(__file__).parents[2] / "docs" / "make_layouts.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_layouts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_that_of_its_version_of_diffusers(script: ModuleType) -> None:
    table = json.loads(script.TABLE.read_text(encoding="utf-8"))
    if table["diffusers"] != diffusers.__version__:
        pytest.skip(f"the table was made with diffusers {table['diffusers']}")
    rows = {name: (group["kind"], group["options"]) for group in table["groups"] for name in group["pipelines"]}
    assert rows == script.layouts()
    assert len(rows) > 250


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("e_uncond, e_text = out.chunk(2)", ("batched", ["uncond", "cond"])),
        ("e_text, e_neg = out.float().chunk(2)", ("batched", ["cond", "uncond"])),
        ("a = self.unet(x)\nneg = self.unet(y)", ("sequential", ["cond", "uncond"])),
        ("a = self.unet(x)", None),
    ],
)
def test_what_is_read_from_a_source(script: ModuleType, source: str, expected: tuple[str, list[str]] | None) -> None:
    row = script.read_layout(source, source)
    assert (row and (row[0], row[1]["branches"])) == expected


def test_a_run_that_has_shown_another_layout_is_an_error(script: ModuleType) -> None:
    rows = {"OnePipeline": ("batched", {"branches": ["uncond", "cond"]})}
    script.compare(
        rows, [{"pipeline": "OnePipeline", "checked": "one call: uncond, cond, w = 5"}, {"pipeline": "Other"}]
    )
    with pytest.raises(SystemExit, match="OnePipeline: the table says batched"):
        script.compare(rows, [{"pipeline": "OnePipeline", "checked": "a call for each: cond, uncond, w = 5"}])


def test_classes_and_those_derived_from_them() -> None:
    class Derived(diffusers.StableDiffusionPipeline):
        def __call__(self) -> None:
            """A loop of its own."""

    class Unguided(diffusers.DDPMPipeline):
        def __call__(self) -> None:
            """Guided, perhaps: nothing is known of it."""

    kinds = known_layouts()
    assert kinds["StableDiffusionPipeline"] == thg.Batched()
    assert kinds["WanPipeline"] == thg.Sequential()
    assert isinstance(kinds["DDPMPipeline"], Refused)
    assert {type(layout) for layout in kinds.values()} >= {Batched, Sequential}
    assert layout_of(Derived.__new__(Derived)) == thg.Batched()
    assert layout_of(Unguided.__new__(Unguided)) is None
