"""The commands as a user calls them, on the shipped model with few steps."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import thg
from thg.cli import COMMANDS, main

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")
FEW = ["--steps", "4", "--model", "eps"]


def test_help_lists_every_command(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    assert f"usage: thg {name}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["plan"], ["plan", "eps"], ["plan", "sd15"]])
def test_help_and_plan_do_not_wait_for_torch(words):
    code = f"import sys; from thg.cli import main; sys.argv[1:] = {words}\ntry: main()\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'diffusers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


def test_the_first_line_comes_before_the_long_imports():
    code = """
import sys
from thg.cli import main
class Watched:
    def write(self, text):
        print(text.strip(), "torch" in sys.modules)
        raise SystemExit
    def flush(self): ...
sys.stderr = Watched()
main(["generate", "a bag"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "thg generate: loading emoji ... False\n"


def test_the_end_of_a_command_does_not_wait_for_a_search_for_garbage():
    """Which would take more than a second with torch and diffusers loaded, also after Ctrl-C in the studio."""
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"  # runs after thg's
    code += "from thg.cli import main; main(['plan'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nTrue\n")


def test_making_pictures_does_not_load_the_benchmark():
    code = "import sys, thg.cli.generate, thg.cli.compare; print([m for m in sys.modules if m.startswith('thg.bench')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "metrics" not in done.stdout
    assert "config" not in done.stdout


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert thg.__version__ in capsys.readouterr().out


def test_python_m_thg_on_a_simple_terminal_and_a_warning_as_a_line_of_the_command():
    command = [sys.executable, "-m", "thg", "plan", "eps", "--steps", "500"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ascii_only)
    assert f"[{500 * '?'}]" in done.stdout
    assert re.fullmatch(r"thg plan: this run is far from .*\n", done.stderr)


def test_a_reader_that_has_ended_is_no_error(tmp_path, monkeypatch, capsys):
    class Ended(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def fileno(self):
            return file.fileno()

    with (tmp_path / "pipe").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Ended())
        assert main(["plan"]) == 141
    assert capsys.readouterr().err == ""


def test_generate_writes_the_picture_with_its_history(tmp_path, capsys):
    out = tmp_path / "boot.png"
    assert main(["generate", "a dark ankle boot", "-o", str(out), "--plan", "0.75", *FEW]) == 0
    assert "6 network evaluations instead of 8" in capsys.readouterr().out
    with Image.open(out) as picture:
        how = json.loads(picture.text["thg"])
    assert (how["prompt"], how["seed"], how["nfe"]) == ("a dark ankle boot", 0, 6)
    assert thg.Plan.from_dict(how["plan"]).nfe == 6
    assert how["versions"]["thg"] == thg.__version__
    assert [path.name for path in tmp_path.iterdir()] == ["boot.png"]


def test_generate_is_repeatable_and_does_not_depend_on_the_batch(tmp_path):
    one, many = tmp_path / "one.png", tmp_path / "many.png"
    assert main(["generate", "a bag", "-o", str(one), "--seed", "1", *FEW]) == 0
    assert main(["generate", "a bag", "-o", str(many), "--count", "3", *FEW]) == 0
    pictures = []
    for path in (one, tmp_path / "many-1.png"):
        with Image.open(path) as picture:
            pictures.append(np.asarray(picture, dtype=int))
    assert abs(pictures[0] - pictures[1]).max() <= 1


def test_generate_plain_flow_and_another_scheduler(tmp_path, capsys):
    assert main(["generate", "a coat", "-o", str(tmp_path / "a.png"), "--plan", "cfg", *FEW]) == 0
    assert "plain CFG: 8 evaluations" in capsys.readouterr().out
    assert main(["generate", "a coat", "-o", str(tmp_path / "b.png"), *FEW, "--model", "flow"]) == 0
    assert main(["generate", "a coat", "-o", str(tmp_path / "c.png"), "--scheduler", "dpm", *FEW]) == 0


def test_generate_from_files(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a bag\n\n   \na coat\n")
    plan = tmp_path / "plan.json"
    plan.write_text(thg.Plan(4, (0, 2)).to_json())
    out = tmp_path / "p.png"
    assert main(["generate", "--prompts", str(prompts), "--plan", str(plan), "-o", str(out), *FEW]) == 0
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["p-0.png", "p-1.png"]


def test_compare_makes_a_labelled_sheet(tmp_path, capsys):
    out = tmp_path / "sheet.png"
    assert main(["compare", "a light dress", "a bag", "-o", str(out), *FEW]) == 0
    shown = capsys.readouterr().out
    assert "plain CFG" in shown
    assert "dB" in shown
    with Image.open(out) as page:
        assert page.width > 400
        assert page.height > 300


def test_compare_has_the_papers_column_where_a_preset_fits(tmp_path, capsys):
    assert main(["compare", "a bag", "-o", str(tmp_path / "s.png"), "--model", "flow", "--steps", "28"]) == 0
    assert "THG, paper (sd35-large)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["generate"], "there is no prompt"),
        (["generate", "a bag", "--plan", "sd21"], "--plan 'sd21' is not"),
        (["generate", "a bag", "--plan", "200%"], "--plan 200%: a tolerance lies above 0% and below 100%"),
        (["generate", "a bag", "--plan", "0"], "--plan 0: a budget is a share of plain CFG's evaluations, above 0"),
        (["generate", "a bag", "--plan", "1.2"], "--plan 1.2: a budget is a share"),
        (["generate", "panda", "--plan", "sd15", "--steps", "4"], "for 50 steps, and this run has 4; write --steps 50"),
        (["generate", "panda", "--plan", "audioldm2"], "does not print the coarse grid"),
        (["generate", "a bag", "--model", "no/such-folder"], "cannot be loaded"),
        (["generate", "a bag", "--device", "cuda:99"], "--device cpu"),
        (["bench", "--device", "cuda:99"], "--device cpu"),
        (["report", ".", "--device", "cuda:99"], "--device cpu"),
        (["generate", "a bag", "--scheduler", "flow-euler"], "predicts noise"),
        (["generate", "a bag", "--scheduler", "x"], "--scheduler x is unknown; for this model"),
        (["generate", "a bag", "--model", "flow", "--scheduler", "ddim"], "predicts a flow"),
        (["generate", "a bag", "-o", "no-such-folder/a.png"], "mkdir -p no-such-folder"),
        (["calibrate", "--out", "no-such-folder/a.json"], "mkdir -p no-such-folder"),
        (["tune", "--out", "no-such-folder/a.json"], "mkdir -p no-such-folder"),
        (["tune", "--out", "."], "is a folder"),
        (["generate", "--prompts", "no-such-file.txt"], "no-such-file.txt"),
        (["compare", "a bag", "-o", "."], "is a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    shown = capsys.readouterr().err.strip()
    assert says in shown.splitlines()[-1]
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["generate", "a", "--steps", "0"], "--steps: must be at least 1, not 0"),
        (["compare", "a", "--guidance-scale", "nan"], "--guidance-scale: must be a number above 0"),
        (["calibrate", "--out", "new.json", "--samples", "0"], "--samples: must be at least 1, not 0"),
        (["no"], "invalid choice: 'no'"),
    ],
)
def test_bad_options_are_refused_by_the_parser(words, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert "--help lists all)" in line


def test_an_unknown_option_names_the_help_of_its_command(capsys):
    assert main(["generate", "a", "--guidance", "3"]) == 2
    assert capsys.readouterr().err == "thg generate: unknown: --guidance 3 (thg generate --help lists all)\n"
    assert main(["--models"]) == 2
    assert capsys.readouterr().err == "thg: unknown: --models (thg --help lists all)\n"


def test_a_folder_that_was_saved_without_a_component(tmp_path, capsys):
    from thg.models import shipped_path

    out = tmp_path / "a.png"
    assert main(["generate", "a bag", "--model", str(shipped_path("flow")), "--steps", "2", "-o", str(out)]) == 0
    assert out.is_file()
    assert len(capsys.readouterr().err.splitlines()) == 1  # that it is loading


def test_a_broken_model_folder(tmp_path, capsys):
    from thg.models import shipped_path

    broken = tmp_path / "broken"
    shutil.copytree(shipped_path("eps"), broken)
    weights = next(broken.glob("unet/*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(["generate", "a bag", "--model", str(broken), "-o", str(tmp_path / "a.png")]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
    (broken / "model_index.json").unlink()
    assert main(["generate", "a bag", "--model", str(broken), "-o", str(tmp_path / "a.png")]) == 2
    assert "no model_index.json" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert thg.__version__ in shown
    assert "shipped model flow" in shown
