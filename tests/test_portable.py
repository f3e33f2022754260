"""The description for other programs: its test vectors are the core's, and its reference program reproduces them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STORED = json.loads((ROOT / "docs" / "test_vectors.json").read_text())


@pytest.fixture(scope="module")
def program():
    return runpy.run_path(str(ROOT / "examples" / "portable.py"))


def test_the_vectors_are_those_of_the_core():
    """After a change of the default's grids: python docs/make_vectors.py"""
    made = json.loads(json.dumps(runpy.run_path(str(ROOT / "docs" / "make_vectors.py"))["vectors"]()))
    assert {k: v for k, v in made.items() if k != "cases"} == {k: v for k, v in STORED.items() if k != "cases"}
    for now, then in zip(made["cases"], STORED["cases"], strict=True):
        assert now.keys() == then.keys()
        for key, value in then.items():
            expected = pytest.approx(_flat(value), rel=1e-6, abs=1e-7) if isinstance(value, list) else value
            assert _flat(now[key]) == expected, f"{then['name']}: {key}"


def test_a_program_without_dependencies_reproduces_them(program, capsys):
    program["main"](STORED)
    assert capsys.readouterr().out.count("agree") == len(STORED["cases"]) == 12


def test_it_notices_a_wrong_weight(program):
    step = next(i for i, row in enumerate(STORED["cases"][0]["weights"]) if len(row) > 1)
    wrong = json.loads(json.dumps(STORED))
    wrong["cases"][0]["weights"][step][0][1] += 0.01
    with pytest.raises(AssertionError, match=r"a weight differs by 0\.01"):
        program["main"](wrong)


def _flat(value):
    """Lists of lists as one list; names and settings as they are."""
    if isinstance(value, list):
        return [item for part in value for item in (_flat(part) if isinstance(part, list) else [part])]
    return value
