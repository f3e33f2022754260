"""The commands in daily use: batches, sizes, defaults, names that are taken, options without effect, metadata."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import stat
import subprocess
import sys

import numpy as np
import pytest
from diffusers import PNDMScheduler
from PIL import Image

import thg
from tests.studio.tiny import tiny_animation, tiny_sound, tiny_stable_diffusion
from thg.cli import main, options

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Somebody's Stable Diffusion, saved to disk."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_stable_diffusion().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """The same with the scheduler that Stable Diffusion 1.5 has on the hub."""
    folder = tmp_path_factory.mktemp("models") / "stock"
    pipe = tiny_stable_diffusion()
    pipe.scheduler = PNDMScheduler.from_config(pipe.scheduler.config, skip_prk_steps=True)
    pipe.save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def history(path) -> dict:
    with Image.open(path) as picture:
        return json.loads(picture.text["thg"])


def pixels(path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture, dtype=int)


def fails(capsys, *words) -> str:
    """The one line on stderr of a command that must fail, by its own error or by the parser's."""
    try:
        code = main([str(word) for word in words])
    except SystemExit as stopped:
        code = stopped.code
    shown = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in shown
    return shown.strip().splitlines()[-1]


def test_metadata_says_how_to_make_the_picture_again(here, folder):
    words = ["--model", folder, "--scheduler", "euler", "--negative-prompt", "fog", "--width", "40", "--height", "32"]
    assert main(["generate", "a bag", "--steps", "4", *map(str, words)]) == 0
    how = history("out.png")
    assert {name: how[name] for name in ("scheduler", "negative_prompt", "dtype", "guidance_scale", "steps")} == {
        "scheduler": "EulerDiscreteScheduler",
        "negative_prompt": "fog",
        "dtype": "float32",
        "guidance_scale": 7.5,
        "steps": 4,
    }
    assert thg.Plan.from_dict(how["plan"]).nfe == how["nfe"]
    assert how["cfg_nfe"] == 8
    with Image.open("out.png") as picture:
        assert picture.size == (how["width"], how["height"]) == (40, 32)
    assert main(["generate", "a bag", "--steps", "4", *map(str, words), "--plan", "cfg", "-o", "plain.png"]) == 0
    assert history("plain.png")["plan"] is None


def test_a_models_own_steps_and_guidance(here, folder):
    parameters = {"num_inference_steps": 50, "guidance_scale": 7.5}  # of StableDiffusionPipeline's call
    assert main(["generate", "a bag", "--model", str(folder)]) == 0
    how = history("out.png")
    assert (how["steps"], how["guidance_scale"]) == tuple(parameters.values())
    flow = str(thg.models.shipped_path("flow"))
    assert main(["generate", "a bag", "--model", flow, "-o", "flow.png"]) == 0
    how = history("flow.png")
    assert (how["steps"], how["guidance_scale"]) == (28, 7.0)  # of StableDiffusion3Pipeline's


def test_batches_make_the_same_pictures_and_each_is_written_when_it_is_ready(here, folder, monkeypatch, capsys):
    words = ["generate", "a bag", "--model", str(folder), "--steps", "6", "--count", "3", "--plan", "0.75"]
    assert main([*words, "--batch-size", "3", "-o", "whole.png"]) == 0
    seen = []
    call = options.call_arguments

    def spy(args, pipe, prompts):
        seen.append((len(prompts), len(list(here.glob("part-*.png")))))
        return call(args, pipe, prompts)

    monkeypatch.setattr(options, "call_arguments", spy)
    assert main([*words, "--batch-size", "2", "-o", "part.png"]) == 0
    assert seen == [(2, 0), (1, 2)]
    assert re.search(r"estimated difference from the plain run: .* \(the worst of 3\)", capsys.readouterr().out)
    for i in range(3):
        assert np.abs(pixels(f"whole-{i}.png") - pixels(f"part-{i}.png")).max() <= 1
        assert history(f"part-{i}.png")["seed"] == i
        assert 0 < history(f"part-{i}.png")["estimated_error"] < 1


def test_existing_files_are_not_overwritten(here, folder, capsys):
    words = ["generate", "a bag", "--model", str(folder), "--steps", "2"]
    (here / "out.png").write_text("mine")
    assert "out.png exists already; write --force" in fails(capsys, *words, "-o", "out.png")
    assert main(words) == 0  # without a name: the next free one
    assert (here / "out.png").read_text() == "mine"
    assert history("out_2.png")["seed"] == 0
    (here / "many-1.png").write_text("mine")
    assert "many-1.png exists already" in fails(capsys, *words, "--count", "2", "-o", "many.png")
    assert main([*words, "--force"]) == 0
    assert history("out.png")["seed"] == 0
    assert "out.png exists already" in fails(capsys, "compare", "a bag", "-o", "out.png")


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-3", "much"])
@pytest.mark.parametrize("command", ["generate", "compare", "plan", "calibrate"])
def test_guidance_that_is_none_gets_a_sentence(command, value, capsys):
    words = {"plan": ["eps"], "calibrate": ["--out", "p.json"]}.get(command, ["a bag"])
    said = fails(capsys, command, *words, f"--guidance-scale={value}")
    assert f"must be a number above 0, such as 7.5 (1 is no guidance), not {value}" in said


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["sd15", "--steps", "30"], "--steps"),
        (["sd15", "--nfe", "0.6"], "--nfe"),
        (["sd15", "--guidance-scale", "3"], "--guidance-scale"),
        (["sd15", "--hare-order", "2"], "--hare-order"),
        (["--cutoff", "20"], "--cutoff"),
        (["--boost", "1.1"], "--boost"),
        (["--rho", "1"], "--rho"),
        (["--sweep"], "--sweep"),
        (["eps", "--sweep", "--nfe", "0.6"], "--nfe"),
        (["eps", "--sweep", "--json"], "--json"),
        (["eps", "--nfe", "0.7", "--guidance-scale", "3"], "--guidance-scale"),
        (["--nfe", "70", "--steps", "40", "--guidance-scale", "3"], "--guidance-scale"),
    ],
)
def test_options_that_do_nothing_are_errors(words, option, capsys):
    assert f"{option} has no effect here" in fails(capsys, "plan", *words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["eps", "--error", "1%", "--nfe", "70"], "--error, --nfe and --rho all say"),
        (["eps", "--cutoff", "30"], "--cutoff belongs to the paper's planner: write --rho 1.1"),
        (["eps", "--method", "algorithm2"], "--method algorithm2 belongs to the paper's planner"),
        (["eps", "--guidance-scale", "1"], "--guidance-scale must be above 1, not 1"),
        (["--error", "200%"], "must lie above 0 and below 1, such as 0.01 or 1%, not 200%"),
    ],
)
def test_plan_speaks_of_its_options(words, sentence, capsys):
    assert sentence in fails(capsys, "plan", *words)


def test_options_that_do_something_are_taken(capsys):
    assert main(["plan", "eps", "--nfe", "0.7", "--cutoff", "40", "--boost", "1.1", "--json"]) == 0
    plan = thg.Plan.from_json(capsys.readouterr().out)
    assert (plan.steps, plan.end_of_guidance, plan.boost) == (50, 40, 1.1)


def test_more_steps_than_the_schedule_has_is_one_line(here, capsys):
    said = fails(capsys, "generate", "a bag", "--steps", "1000")  # it counts from one
    assert "DDIMScheduler cannot run 1000 steps" in said
    said = fails(capsys, "generate", "a bag", "--steps", "1001", "--scheduler", "unipc")
    assert "UniPCMultistepScheduler has 1000 noise levels, and cannot run 1001 steps" in said


def test_out_of_memory_is_one_line_with_the_size_to_try(here, folder, capsys):
    huge = ["--model", folder, "--steps", "1", "--width", "8000000", "--height", "8000000"]  # 64 terabytes
    said = fails(capsys, "generate", "a bag", *huge)
    assert "out of memory; write a smaller --width and --height" in said
    said = fails(capsys, "generate", "a bag", *huge, "--count", "4", "--batch-size", "4")
    assert "out of memory; write --batch-size 2" in said


def test_results_that_do_not_fit_their_name_are_refused_before_the_run(here, folder, capsys):
    assert "for pictures; write -o out.png" in fails(capsys, "generate", "a bag", "--model", folder, "-o", "out.wav")
    assert "for pictures; write -o out.png" in fails(capsys, "compare", "a bag", "-o", "out.wav")


def test_a_plan_for_other_steps_and_a_scheduler_of_another_family_name_the_option_to_write(here, folder, capsys):
    words = ["generate", "a bag", "--model", folder]
    said = fails(capsys, *words, "--steps", "6", "--plan", "sd15")
    assert "the plan is for 50 steps, and this run has 6; write --steps 50, or --plan 0.70" in said
    said = fails(capsys, *words, "--scheduler", "flow-euler")
    assert said.endswith("--scheduler flow-euler does not fit; for this model, which predicts noise: " + NOISE)


NOISE = "ddim, euler, dpm, dpm-single, unipc, deis, heun, dpm2, lms, pndm, euler-a, dpm2-a, dpm-sde, ddpm"


def test_a_calibration_names_the_scheduler_to_write_and_leaves_nothing_in_the_way(here, capsys):
    words = ["calibrate", "--out", "p.json", "--steps", "4", "--samples", "1", "--sensitivity", "0", "--quiet"]
    assert "write --scheduler euler" in fails(capsys, *words, "--scheduler", "euler-a")
    assert "at 7 times in 4 steps; calibrate with another" in fails(capsys, *words, "--scheduler", "dpm2")
    assert main(words) == 0


def test_prompts_from_a_column(here, folder, capsys):
    (here / "some.csv").write_text("title,words\nx,a bag\n", encoding="utf-8")
    words = ["generate", "--prompts", "some.csv", "--model", str(folder), "--steps", "1"]
    assert "has the columns 'title', 'words'; write --column" in fails(capsys, *words)
    assert main([*words, "--column", "words"]) == 0
    assert history("out.png")["prompt"] == "a bag"


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_progress_bar_is_for_terminals(here, folder):
    words = ["generate", "a bag", "--model", str(folder), "--steps", "4", "--count", "3", "--batch-size", "2"]
    with contextlib.redirect_stderr(Screen()) as screen:
        assert main(words) == 0
    assert "generating" in screen.getvalue()
    percents = [int(percent) for percent in re.findall(r"(\d+)% ", screen.getvalue())]
    assert percents == sorted(percents)
    assert percents[0] == 0
    assert percents[-1] <= 100
    with contextlib.redirect_stderr(io.StringIO()) as file:
        assert main([*words, "--force"]) == 0
    assert file.getvalue() == f"thg generate: loading {folder} ...\n"


def test_files_have_the_mode_of_the_umask(here, capsys):
    before = os.umask(0o027)
    try:
        words = ["--steps", "4", "--samples", "2", "--sensitivity", "1", "--batch-size", "1", "--quiet"]
        assert main(["calibrate", "--model", "eps", "--out", "p.json", "--algorithm3", *words]) == 0
        assert main(["plan", "p.json", "--plot", "p.png"]) == 0
        assert main(["generate", "a bag", "--model", "eps", "--steps", "2"]) == 0
    finally:
        os.umask(before)
    written = [path for path in here.rglob("*") if path.is_file()]
    assert len(written) > 3
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in written} == {"0o640"}


@pytest.mark.parametrize("scheduler", ["euler-a", "dpm2-a", "dpm-sde"])
def test_schedulers_that_add_noise(here, folder, capsys, scheduler):
    words = ["generate", "a bag", "--model", str(folder), "--scheduler", scheduler, "--steps", "20", "--force"]
    assert main(words) == 0
    assert "adds noise" in capsys.readouterr().out  # the note on the corrector
    first = pixels("out.png")
    assert main(words) == 0
    assert (pixels("out.png") == first).all()  # the noise is of the seed
    assert main([*words, "--seed", "1"]) == 0
    assert (pixels("out.png") != first).any()


def test_a_prompt_without_a_word_that_the_shipped_model_knows(here, capsys):
    words = ["--model", "eps", "--steps", "2", "--force"]
    assert main(["generate", "a red bicycle", *words]) == 0
    assert "'a red bicycle' has no word that this model knows; it draws garments (t-shirt, " in capsys.readouterr().err
    assert main(["generate", "Grey T-shirt!", "black jeans", *words]) == 0
    assert "knows" not in capsys.readouterr().err


def test_tiny_pictures_can_be_enlarged(here):
    assert main(["generate", "panda", "--steps", "2"]) == 0
    assert main(["generate", "panda", "--steps", "2", "--enlarge", "3", "-o", "large.png"]) == 0
    assert (pixels("large.png")[1::3, 1::3] == pixels("out.png")).all()


# -- plan


def test_the_plan_says_that_a_pipelines_scheduler_may_change_it(capsys):
    for words, says in (([], True), (["eps"], True), (["sd15"], False)):
        assert main(["plan", *words]) == 0
        assert ("a pipeline's own may need other steps" in capsys.readouterr().out) is says


@pytest.mark.parametrize("start", [[], ["--image", "start.png", "--strength", "0.75"]])
def test_the_plan_of_a_pipeline_is_the_one_that_the_run_follows(here, folder, start, capsys):
    Image.new("RGB", (64, 64), (200, 30, 30)).save("start.png")
    words = ["generate", "a bag", "--model", str(folder), "--steps", "20", "--scheduler", "dpm", *start]
    assert main([*words, "--dry-run"]) == 0
    name, strip, *_ = capsys.readouterr().out.splitlines()
    assert name == "DPMSolverMultistepScheduler"
    assert not list(here.glob("out*.png"))
    assert main(words) == 0
    assert f"[{thg.Plan.from_dict(history('out.png')['plan']).strip()}]" == strip
    assert len(strip) == 2 + (15 if start else 20)
    assert "--plan cfg has none" in fails(capsys, *words, "--dry-run", "--plan", "cfg")


def test_a_plan_without_savings_says_why(capsys):
    assert main(["generate", "panda", "--dry-run", "--scheduler", "euler-a"]) == 0
    assert "everything is evaluated: EulerAncestralDiscreteScheduler adds noise" in capsys.readouterr().out


def test_a_budget_without_savings_says_why_once(here):
    words = ["generate", "a bag", "--model", "eps", "--steps", "6", "--plan", "1000"]
    done = subprocess.run([sys.executable, "-m", "thg", *words], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "everything was evaluated: the plan leaves out no step"
    assert done.stderr == "thg generate: loading eps ...\n"


def test_a_plan_is_told_in_words(capsys):
    assert main(["plan", "--steps", "28", "--error", "0.5%"]) == 0
    assert "the network runs at steps 0, 1, 2, 3, 4," in capsys.readouterr().out
    assert main(["plan", "sd15"]) == 0
    assert "hare order 1, boost 1.1, corrector 0\nboth branches run at steps 0, 1," in capsys.readouterr().out


def test_the_grids_over_rho_are_indices(capsys):
    assert main(["plan", "eps", "--sweep", "--rho", "1.1"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("1.10")]
    assert main(["plan", "eps", "--rho", "1.1", "--json"]) == 0
    assert [int(index) for index in row[3:]] == list(thg.Plan.from_json(capsys.readouterr().out).coarse)


# -- compare


def test_compare_can_be_repeated(here, capsys):
    for name in ("compare.png", "compare_2.png"):
        assert main(["compare", "a bag", "--model", "eps", "--steps", "4"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == name
        assert (here / name).is_file()


def test_compare_has_a_column_of_the_same_cost_and_the_worst_picture(here, capsys):
    assert main(["compare", "a bag", "a coat", "--model", "eps", "--steps", "24"]) == 0
    lines = {line[:28].strip(): line[28:] for line in capsys.readouterr().out.splitlines()}
    counts = [int(lines[name].split()[0]) for name in list(lines)[:3]]
    assert list(lines)[:3] == ["plain CFG", "thg", f"plain CFG, {counts[2] // 2} steps"]
    assert counts[0] == 48
    assert counts[1] <= counts[2] <= counts[1] + 1
    assert "estimated error " in lines["thg"]
    for name in list(lines)[1:3]:
        mean, worst = map(float, re.search(r"([\d.]+) dB, worst ([\d.]+)", lines[name]).groups())
        assert worst < mean < 100


def test_compare_counts_what_plain_cfg_evaluated(here, folder, capsys):
    words = ["compare", "a bag", "--model", str(folder), "--steps", "6", "--force"]
    assert main([*words, "--scheduler", "heun"]) == 0  # calls the network twice a step, but for the last one
    assert "plain CFG                    22 evaluations" in capsys.readouterr().out
    assert main([*words, "--guidance-scale", "1"]) == 0
    shown = capsys.readouterr()
    assert "plain CFG                    6 evaluations" in shown.out
    assert "plain CFG, " not in shown.out  # nothing was saved
    assert "with --steps 6 thg needs every evaluation" in shown.err
    assert main([*words, "--scheduler", "dpm"]) == 0
    assert "with --steps 6 thg needs every evaluation to stay within its tolerance" in capsys.readouterr().err


@pytest.mark.parametrize("scheduler", ["pndm", "heun"])
def test_the_papers_column_with_schedulers_that_call_the_network_more_often(here, stock, capsys, scheduler):
    """As Stable Diffusion 1.5 comes from the hub, with PNDM; and with Heun."""
    words = ["compare", "a bag", "--model", str(stock), "--steps", "50", "--scheduler", scheduler]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "no column" not in shown.err
    assert "THG, paper (sd15)" in shown.out
    assert "thg   " in shown.out


def test_a_column_that_cannot_be_made_is_left_out_with_its_reason(here, folder, capsys):
    """PNDM with its Runge-Kutta steps calls the network 59 times in 50 steps, more than the plan has steps."""
    words = ["compare", "a bag", "--model", str(folder), "--steps", "50", "--scheduler", "pndm"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "no column 'THG, paper (sd15)': the plan is for 50 steps" in shown.err
    assert "thg   " in shown.out


@pytest.mark.parametrize(("kind", "suffix"), [(tiny_sound, ".wav"), (tiny_animation, ".gif")])
def test_sounds_and_videos_are_compared(here, capsys, kind, suffix):
    kind().save_pretrained("model")
    words = ["compare", "a bag", "--model", "model", "--steps", "14", "-o", "sheet.png"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^thg .* dB", shown, re.MULTILINE)
    names = {path.name for path in here.glob(f"*{suffix}")}
    assert {f"sheet-plain-cfg-0{suffix}", f"sheet-thg-0{suffix}"} <= names
    with Image.open("sheet.png") as sheet:
        cell = np.asarray(sheet.convert("RGB"))[140:280, 220:370]
    assert len(np.unique(cell.reshape(-1, 3), axis=0)) > 20  # a spectrogram, or frames
    (here / "sheet.png").unlink()
    assert "exists already" in fails(capsys, *words)


def test_labels_have_their_letters():
    from thg.plots.pictures import font_for

    for text in ("a bag", "Füße für Ærø", "Ωμέγα", "Привет, мир"):
        font = font_for(text, 13)
        box = bytes(font.getmask("\U0010ffff"))
        assert all(bytes(font.getmask(letter)) != box for letter in text if letter != " ")
    assert font_for("\ue000", 13) is not None  # nobody has it: a box, and no error
    assert font_for("\ue000 Ωμέγα", 13).getname() == font_for("Ωμέγα", 13).getname()  # one box, not six


def test_labels_stay_within_their_column():
    """Long words are broken, and a prompt that is too long ends with dots."""
    from PIL import ImageFont

    from thg.plots.pictures import _wrapped

    font = ImageFont.load_default(13)
    lines = _wrapped("w" * 100, font, 100, most=20)
    assert "".join(lines) == "w" * 100
    assert max(map(font.getlength, lines)) <= 100
    lines = _wrapped("many words " * 20, font, 100, most=3)
    assert len(lines) == 3
    assert lines[-1].endswith("…")
    assert font.getlength(lines[-1]) <= 100
