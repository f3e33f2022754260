"""Whatever is in a plan, profile, configuration or prompt file: the command line answers with one line."""

import copy
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import thg
from tests.calibrate.test_profile import made_up
from tests.release.commands import call, refused
from thg.bench.config import SHIPPED_CONFIG

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

NUMBERS = st.one_of(
    st.integers(-3, 60), st.sampled_from([10**6, 10**12, 10**400, -(10**400)]), st.floats(), st.floats(0, 2)
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=6), st.sampled_from(["optimal", "flow", "\n"]))
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def places(value, path=()):
    """Every place in a nested value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


@st.composite
def changed(draw, valid):
    """A valid document with one to three places changed, removed or added."""
    document = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(places(document), key=repr)))
        if not path:
            continue
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        how = draw(st.sampled_from(["replace", "remove", "add"]))
        if how == "remove":
            del holder[path[-1]]
        elif how == "replace":
            holder[path[-1]] = draw(JSON)
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=5))] = draw(JSON)
    return document


@st.composite
def damaged(draw, valid: bytes):
    """The bytes of a valid file, cut short or with other bytes written over some of its own."""
    where = draw(st.integers(0, len(valid)))
    return valid[:where] + draw(st.binary(max_size=8)) + draw(st.sampled_from([b"", valid[where + 3 :]]))


def answers_in_one_line(name: str, content: bytes, *commands):
    """Every command on a file with this content ends well, or with one line and exit code 2."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        for words in commands:
            before = os.getcwd()
            os.chdir(folder)
            try:
                code, out, err = call(*(path if word == "FILE" else word for word in words))
            finally:
                os.chdir(before)
            assert code in (0, 2), err
            assert (code == 0 and out) or (err.startswith(f"thg {words[0]}: ") and err.count("\n") == 1), err


def as_json(document) -> bytes:
    return json.dumps(document).encode()


PLAN = thg.Plan(20, (0, 1, 2, 4, 8), cutoff=15, boost=1.1, corrector=0.5).to_dict()
PLAN_COMMANDS = [("plan", "FILE"), ("generate", "a bag", "--plan", "FILE", "--model", "nowhere/at-all")]


@FEW
@given(content=st.one_of(changed(PLAN).map(as_json), damaged(as_json(PLAN)), JSON.map(as_json), st.binary(max_size=50)))
def test_plans(content):
    answers_in_one_line("plan.json", content, *PLAN_COMMANDS)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    made_up(6).save(path)
    return json.loads(path.read_text())


@FEW
@given(data=st.data())
def test_profiles(profile, data):
    content = data.draw(st.one_of(changed(profile).map(as_json), damaged(as_json(profile))))
    commands = [("plan", "FILE"), ("plan", "FILE", "--sweep"), *PLAN_COMMANDS[1:]]
    answers_in_one_line("profile.json", content, *commands)


def as_toml(values, name="") -> str:
    """The values as TOML; what it cannot hold is left out."""
    lines, below = [], []
    for key, value in values.items():
        quoted = json.dumps(key)
        inner = f"{name}.{quoted}" if name else quoted
        if isinstance(value, dict):
            below.append(f"[{inner}]\n" + as_toml(value, inner))
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            below += [f"[[{inner}]]\n" + as_toml(item, inner) for item in value]
        elif value is not None:
            lines.append(f"{quoted} = {json.dumps(value).replace('NaN', 'nan').replace('Infinity', 'inf')}")
    return "\n".join([*lines, *below]) + "\n"


CONFIG = {
    "title": "fuzzed",
    "steps": 6,
    "guidance_scale": 5.0,
    "count": 2,
    "batch_size": 3,
    "seed": 0,
    "metrics": ["psnr"],
    "model": {"source": "nowhere", "scheduler": "DDIMScheduler", "scheduler_options": {"eta": 0}, "dtype": "float32"},
    "prompts": {"file": "nowhere.txt", "column": "prompt"},
    "references": {"folder": "nowhere", "statistics": {"fid": "nowhere.npz"}},
    "sheet": {"prompts": [0, 1], "methods": ["CFG"], "region": [0, 0, 4, 4]},
    "networks": {"clip": "nowhere"},
    "methods": [
        {"name": "CFG", "policy": "cfg"},
        {"name": "uniform", "policy": "uniform", "nfe": 9, "paper": {"fid": 9.5}},
        {"name": "paper", "policy": "thg", "coarse": [0, 1, 3], "cutoff": 5, "boost": 1.1},
        {"name": "cache", "policy": "cfg-cache", "nfe": 9},
        {"name": "profile", "policy": "profile", "nfe": 9, "profile": "nowhere.json"},
        {"name": "adaptive", "policy": "adaptive-guidance", "threshold": 0.9},
    ],
}


@FEW
@given(
    content=st.one_of(
        changed(CONFIG).map(lambda values: as_toml(values).encode(errors="replace")),
        damaged(as_toml(CONFIG).encode()),
        damaged(SHIPPED_CONFIG.read_bytes().replace(b"shipped", b"source")),
    )
)
def test_configurations(content):
    answers_in_one_line("bench.toml", content, ("bench", "--config", "FILE", "--out", "run", "--quiet"))


@FEW
@given(
    stored=st.one_of(
        changed({"identity": "0", "title": "fuzzed", "config": CONFIG, "base": "."}).map(as_json),
        damaged(as_json({"config": CONFIG, "base": "."})),
    )
)
def test_run_folders(stored):
    answers_in_one_line("config.json", stored, ("report", "."))


@FEW
@given(
    suffix=st.sampled_from([".txt", ".csv", ".tsv", ".jsonl", ".pickle"]),
    content=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode), damaged(b'{"prompt": "a bag"}\n')),
)
def test_prompt_files(suffix, content):
    answers_in_one_line(f"prompts{suffix}", content, ("generate", "--prompts", "FILE", "--model", "nowhere/at-all"))


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--steps", 0),
        ("plan", "--steps", 10**12),
        ("plan", "--nfe", "1e400"),
        ("generate", "panda", "--seed", 10**30, "--steps", 2),
        ("generate", "panda", "--steps", 4000),
        ("generate", "a bag", "-o", "picture.xyz"),
        ("compare", "a bag", "-o", "picture"),
        ("plan", "flow", "--plot", "plot.xyz"),
        ("bench", "--seed", -1),
        ("bench", "--count", 0),
    ],
)
def test_options_that_make_no_sense(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(*words)
