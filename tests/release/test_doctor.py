"""`thg doctor` in a broken environment: a torchvision that was made for another torch."""

import os
import subprocess
import sys

BROKEN = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


def doctor(*paths):
    """Exit code and report of the command, with these folders before all other packages."""
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, "-m", "thg", "doctor"], env=settings, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_a_torchvision_that_does_not_load_is_found_and_the_remedy_told(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(BROKEN)
    (tmp_path / "torchaudio").mkdir()
    (tmp_path / "torchaudio" / "__init__.py").write_text("")
    code, shown = doctor(tmp_path)
    assert code == 1
    (line,) = [line for line in shown.splitlines() if "torchvision" in line]
    assert line.startswith("BAD")
    assert "pip uninstall torchvision" in line
    assert "nms does not exist" in line
    (fine,) = [line for line in shown.splitlines() if "torchaudio" in line]
    assert fine.startswith("ok")


def test_versions_device_and_extras_are_told(tmp_path):
    _, shown = doctor(tmp_path)
    lines = {line[5:27].strip(): line for line in shown.splitlines()}
    for what in ("thg", "python", "torch", "shipped model eps", "shipped model flow"):
        assert lines[what].startswith("ok")
    assert any(name.startswith(("device", "cuda", "mps")) for name in lines)
    for extra in ("diffusers", "metrics", "plots", "studio", "datasets"):
        assert lines[f"extra {extra}"].startswith(("ok", " - "))
