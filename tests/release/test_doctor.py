"""`thg doctor` in broken environments: a torchvision for another torch, a namesake, a CPU that bfloat16 stops."""

import os

import pytest

from tests.release.commands import call, refused
from thg.processes import bfloat16_works

BROKEN = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


# Runs when an interpreter starts: the child that probes bfloat16 is killed as by the CPU, unless {cure}.
ILLEGAL = """
import os, signal, sys
if any("torch.bfloat16" in word for word in sys.orig_argv) and not ({cure}):
    os.kill(os.getpid(), signal.SIGILL)
"""
CURED_BY_THE_SETTING = ILLEGAL.format(cure='os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX512_CORE_BF16"')
NOT_CURED = ILLEGAL.format(cure="False")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder before all other packages, of this process and of its children."""
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(tmp_path)
    bfloat16_works.cache_clear()
    yield tmp_path
    bfloat16_works.cache_clear()


def test_a_torchvision_that_does_not_load_is_found_and_the_remedy_told(installed):
    (installed / "torchvision").mkdir()
    (installed / "torchvision" / "__init__.py").write_text(BROKEN)
    (installed / "torchaudio").mkdir()
    (installed / "torchaudio" / "__init__.py").write_text("")
    code, shown, _ = call("doctor")
    assert code == 1
    (line,) = [line for line in shown.splitlines() if "torchvision" in line]
    assert line.startswith("BAD")
    assert "pip uninstall torchvision" in line
    assert "nms does not exist" in line
    (fine,) = [line for line in shown.splitlines() if "torchaudio" in line]
    assert fine.startswith("ok")


def test_versions_device_and_extras_are_told(installed):
    _, shown, _ = call("doctor")
    lines = {line[5:27].strip(): line for line in shown.splitlines()}
    for what in ("thg", "python", "torch", "shipped model eps", "shipped model flow"):
        assert lines[what].startswith("ok")
    assert any(name.startswith(("device", "cuda", "mps")) for name in lines)
    for extra in ("diffusers", "metrics", "plots", "studio", "datasets"):
        assert lines[f"extra {extra}"].startswith(("ok", " - "))


def test_a_namesake_is_found(installed):
    info = installed / "thg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thg\nVersion: 1.0\n")
    (info / "RECORD").write_text("thg/__init__.py,,\n")
    code, shown, _ = call("doctor")
    assert code == 1
    (line,) = [line for line in shown.splitlines() if line.startswith("BAD")]
    assert "another project" in line
    assert "pip uninstall thg" in line
    assert "tortoise-hare-guidance" in line


@pytest.mark.parametrize(
    ("at_start", "advice"),
    [(CURED_BY_THE_SETTING, "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"), (NOT_CURED, "use float32")],
)
def test_a_cpu_that_bfloat16_stops(installed, at_start, advice):
    (installed / "sitecustomize.py").write_text(at_start)
    code, shown, _ = call("doctor")
    assert code == 0
    (line,) = [line for line in shown.splitlines() if "bfloat16" in line]
    assert line.startswith(" - ")
    assert advice in line
    assert advice in refused("generate", "a bag", "--dtype", "bfloat16", "--device", "cpu", "-o", installed / "a.png")
