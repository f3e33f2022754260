"""Addresses of samples: what would change a picture changes its address, so nothing stale is reused."""

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("diffusers", reason="the benchmark needs diffusers")

import thg
from tests.bench.runs import METHODS, config_in, save_model, values
from thg.bench.config import ModelTable, parse_config
from thg.bench.samples import load_prompts, prompts_wanted
from thg.bench.store import Series, thg_code, weights
from thg.distribution import versions
from thg.models import shipped_path

SOURCE = Path(thg.__file__).parent
WITHIN = {"name": "default", "policy": "within"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    save_model(folder)
    return folder


def addresses(config):
    return {method.name: Series(Path("store"), config, method, "prompts").key for method in config.methods}


def test_a_changed_default_is_another_address(home, monkeypatch, tmp_path):
    """A planner's constants are not among its options; the source that holds them is part of the address."""
    changed = tmp_path / "thg"
    for path in SOURCE.rglob("*.py"):
        (changed / path.relative_to(SOURCE)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, changed / path.relative_to(SOURCE))
    assert thg_code(package=changed) == thg_code()
    planner = changed / "plans" / "tolerance.py"
    planner.write_text(planner.read_text().replace("0.85", "0.86"))
    thg_code.cache_clear()
    before = addresses(config_in(home, methods=[*METHODS, WITHIN]))
    monkeypatch.setattr("thg.bench.store.thg_code", lambda part="": thg_code(part, changed))
    after = addresses(config_in(home, methods=[*METHODS, WITHIN]))
    assert before["CFG"] == after["CFG"]  # thg does not run
    assert {name for name in before if before[name] != after[name]} == {"CFG-Cache", "thg uniform", "default"}


def test_plain_cfg_of_a_shipped_model_depends_on_the_code_that_reads_its_prompts(monkeypatch):
    given = values(model={"shipped": "eps"}, prompts={}, methods=METHODS[:1])
    before = addresses(parse_config(given, Path()))
    monkeypatch.setattr("thg.bench.store.thg_code", lambda part="": f"other {part}")
    assert addresses(parse_config(given, Path())) != before


def test_what_only_reports_is_not_part_of_the_address(tmp_path):
    for name in ("plans", "bench/methods", "cli"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.py").write_text("x = 1\n")
    before = thg_code(package=tmp_path)
    (tmp_path / "cli" / "a.py").write_text("x = 2\n")
    (tmp_path / "bench" / "report.py").write_text("x = 2\n")
    thg_code.cache_clear()
    assert thg_code(package=tmp_path) == before
    (tmp_path / "bench" / "methods" / "b.py").write_text("x = 2\n")
    thg_code.cache_clear()
    assert thg_code(package=tmp_path) != before
    thg_code.cache_clear()


def test_retrained_weights_of_the_same_size_are_another_model(home, tmp_path):
    model = shutil.copytree(home / "model", tmp_path / "model")
    config = parse_config(values(model={"source": str(model)}), home)
    before = addresses(config)
    assert addresses(config) == before
    file = max(model.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-len(content) // 2 :] = bytes(byte ^ 1 for byte in content[-len(content) // 2 :])
    file.write_bytes(content)
    os.utime(file, ns=(0, 0))
    after = addresses(config)
    assert all(before[name] != after[name] for name in before)


def test_the_shipped_weights_are_part_of_the_address():
    assert weights(ModelTable(shipped="eps")) != weights(ModelTable(shipped="flow")) != ""
    assert weights(ModelTable(source="nobody/nothing")) == ""  # not downloaded yet


def test_another_profile_in_the_same_file_is_another_address(home, tmp_path):
    file = shutil.copyfile(shipped_path("eps") / "profile.json", tmp_path / "profile.json")
    row = {"name": "mine", "policy": "profile", "nfe": 70, "profile": str(file)}
    config = config_in(home, methods=[METHODS[0], row], steps=50)

    def preparation():
        return Series(Path("store"), config, config.method("mine"), "prompts").parts

    before = preparation()
    file.write_text(file.read_text() + "\n")
    assert preparation() != before


def test_another_version_of_a_library_is_another_address(home, monkeypatch):
    before = addresses(config_in(home))
    installed = versions()
    monkeypatch.setattr("thg.bench.store.versions", lambda: {**installed, "diffusers": "0.0"})
    after = addresses(config_in(home))
    assert all(before[name] != after[name] for name in before)


# -- prompts of a calibration


def test_a_dataset_has_as_many_prompts_as_a_calibration_needs(home, tmp_path):
    methods = [METHODS[0], {"name": "THG", "policy": "thg", "rho": 1.1, "calibrate": 9}]
    config = config_in(home, prompts={"dataset": str(tmp_path), "split": "train"}, methods=methods, count=2)
    assert prompts_wanted(config) == 9
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text("".join(f'{{"prompt": "number {i}"}}\n' for i in range(12)))
    assert load_prompts(config).prompts == [f"number {i}" for i in range(9)]
