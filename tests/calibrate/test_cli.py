"""`thg plan` and `thg calibrate` as a user meets them: what they print, and what they refuse."""

import json

import pytest

from tests.calibrate.test_profile import made_up
from thg.cli import main


@pytest.fixture
def profile_file(tmp_path):
    path = tmp_path / "p.json"
    made_up(20).save(path)
    return str(path)


def test_a_plan_of_a_profile(profile_file, capsys):
    assert main(["plan", profile_file, "--nfe", "0.65"]) == 0
    shown = capsys.readouterr().out
    assert "26 of 40 evaluations, ideal speed-up 1.54x" in shown
    assert shown.count("●") == 13


def test_a_profile_plans_for_a_tolerance_unless_a_budget_is_given(profile_file, capsys):
    shown = {}
    for words in ([], ["--error", "0.01"], ["--error", "0.1"]):
        assert main(["plan", profile_file, *words]) == 0
        shown[tuple(words)] = capsys.readouterr().out
    assert shown[()] == shown["--error", "0.01"]
    assert shown["--error", "0.1"].count("●") < shown[()].count("●")


def test_a_number_of_evaluations_alone_gives_the_steps_too(capsys):
    assert main(["plan", "--nfe", "40"]) == 0
    shown = capsys.readouterr().out
    assert "num_inference_steps=100" in shown
    assert "40 of 200 evaluations" in shown


def test_as_json_it_can_be_read_again(profile_file, tmp_path, capsys):
    assert main(["plan", profile_file, "--rho", "1.1", "--cutoff", "15", "--json"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["cutoff"] == 15
    (tmp_path / "plan.json").write_text(text)
    assert main(["plan", str(tmp_path / "plan.json")]) == 0


def test_the_sweep_has_a_row_for_each_rho(profile_file, capsys):
    assert main(["plan", profile_file, "--sweep", "--rho", "1.15"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert any(row.strip().startswith("1.15") for row in rows)
    counts = [int(row.split()[1]) for row in rows]
    assert counts[-1] < counts[0]


@pytest.mark.parametrize("words", [[], ["sd15"]])
def test_without_a_profile(words, capsys):
    assert main(["plan", *words]) == 0
    assert "evaluations" in capsys.readouterr().out


def test_the_plot_is_written(profile_file, tmp_path):
    pytest.importorskip("matplotlib")
    assert main(["plan", profile_file, "--plot", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "PROFILE", "--nfe", "20", "--method", "algorithm2"], "20 steps need 21 to 40"),
        (["plan", "PROFILE", "--nfe", "half"], "--nfe must be a share"),
        (["plan", "--rho", "1"], "it needs a profile"),
        (["plan", "PROFILE", "--nfe", "0.6", "--error", "0.01"], "write one of them"),
        (["plan", "--nfe", "3"], "too few for two steps"),
        (["plan", "nothing.json"], "neither a file"),
        (["plan", "emoji"], "thg plan alone shows the default"),
        (["calibrate", "--out", "PROFILE"], "exists already"),
        (["calibrate", "--model", "some/model", "--out", "new.json"], "no prompts were given"),
        (["calibrate", "--prompts", "EMPTY", "--out", "new.json"], "no usable line"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, profile_file, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n \n")
    places = {"PROFILE": profile_file, "EMPTY": str(tmp_path / "empty.txt")}
    assert main([places.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1]
    assert error.count("\n") == 1 + ("loading" in error)
