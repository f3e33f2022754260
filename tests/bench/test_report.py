"""The report: the table, what is missing in it and why, the pictures, and rebuilding without generating."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("diffusers", reason="the benchmark needs diffusers")

from tests.bench.runs import METHODS, config_in, measured, quietly, report, run_in, sample_file, save_model, values
from thg.bench import metrics
from thg.bench.config import parse_config
from thg.bench.report import Comparison, Row, rebuild_report, table
from thg.bench.store import RunFolderError, open_picture
from thg.cli import main
from thg.plots.charts import Point, draw_frontier, family
from thg.plots.pictures import Column, most_different, sheet

STATISTICS = Path(metrics.__file__).parent / "judge_reference.safetensors"
PUBLISHED = {"nfe": 70, "psnr": 24.16}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    save_model(folder)
    return folder


@pytest.fixture(scope="module")
def finished(home):
    """A finished run with a published row, a metric without weights and a program that does not fit."""
    methods = [*METHODS, {"name": "a DiT cache", "policy": "cache-dit"}]
    methods[1] = {**methods[1], "paper": PUBLISHED}
    packages = dict.fromkeys(["lpips", "fid"], str(home / "no-such-python"))
    model = {"source": "model", "call": {"height": 32, "width": 32}}  # the size that the judge knows
    metrics = ["psnr", "ssim", "lpips", "fid"]
    config = config_in(home, methods=methods, metrics=metrics, packages=packages, model=model)
    quietly(config, home / "run")
    return config, home / "run", report(config, home / "run")


def row(name, nfe=70.0, psnr=None, **more):
    fields = {
        "policy": "uniform",
        "paper": "",
        "group": "",
        "steps": 50,
        "guidance_scale": 5.0,
        "seconds": nfe / 100 if nfe else None,
        "published": {},
        **more,
    }
    return Row(name=name, nfe=nfe, metrics={"psnr": psnr}, **fields)


def cells(text, name):
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


# -- the table


def test_the_best_is_bold_in_its_group_and_plain_cfg_is_none_of_the_compared():
    rows = [
        row("CFG", 100.0, is_reference=True),
        row("a", psnr=30.0, group="70"),
        row("b", psnr=40.0, group="70"),
        row("c", psnr=20.0, group="60"),
        row("d", psnr=None, group="60", nfe=None),
    ]
    text = table(Comparison(rows, {"psnr": "higher"}), ("psnr",))
    assert cells(text, "a")[-1] == "30.00"
    assert cells(text, "b")[-1] == "**40.00**"
    assert cells(text, "c")[-1] == "20.00"  # alone in its group
    assert cells(text, "d")[1:] == ["–", "–", "–", "–", "–"]
    assert cells(text, "b")[1:5] == ["70", "0.700", "–", "1.43x"]  # no batch was timed in turns


def test_lower_is_better_where_it_is():
    rows = [row("CFG", 100.0, is_reference=True), row("a", psnr=3.0), row("b", psnr=4.0)]
    assert cells(table(Comparison(rows, {"psnr": "lower"}), ("psnr",)), "a")[-1] == "**3.00**"


def test_the_worst_five_percent_stand_beside_the_mean():
    rows = [row("CFG", 100.0, is_reference=True), row("a", psnr=60.0, worst={"psnr": 21.0}), row("b", psnr=40.0)]
    text = table(Comparison(rows, {"psnr": "higher"}), ("psnr",))
    assert cells(text, "a")[-1] == "**60.00** / 21.00"


# -- a finished run


def test_the_report_has_what_was_measured_and_says_what_is_missing(finished):
    _, path, text = finished
    report = (path / "report.md").read_text()
    assert text in report
    assert cells(text, "CFG (reference)")[1] == "12"
    assert cells(text, "CFG-Cache")[1] == "9 (paper 70)"
    assert cells(text, "CFG-Cache")[5].endswith("(paper 24.16)")
    assert cells(text, "CFG-Cache")[7:] == ["–", "–"]
    assert "- No lpips: " in report
    assert "no-such-python" in report
    assert "- No fid: " in report
    assert cells(text, "a DiT cache")[1:] == ["–"] * 8
    assert "cache-dit works on transformers" in report
    for fact in ("seed 0", "torch: ", "diffusers: ", "commit", '"guidance_scale": 5.0', "Lv et al."):
        assert fact in report


def test_the_numbers_are_there_for_machines_too(finished):
    config, path, _ = finished
    document = json.loads((path / "metrics.json").read_text())
    assert {"date", "commit", "torch", "device"} <= set(document["environment"])
    assert document["config"] == json.loads(json.dumps(config.source))
    assert document["seed"] == 0
    assert set(document["missing"]) == {"lpips", "fid"}
    by_name = {method["name"]: method for method in document["methods"]}
    assert by_name["thg uniform"]["ideal_speedup"] == pytest.approx(12 / 9)
    assert by_name["CFG-Cache"]["published"] == PUBLISHED
    assert by_name["a DiT cache"]["nfe"] is None
    assert by_name["CFG"]["seconds"] > 0


def test_scores_are_taken_before_pictures_become_bytes(finished):
    """Rounding to bytes adds the variance of two roundings, 2/12 of a level squared, to the squared difference."""
    config, path, _ = finished
    series = run_in(config, path).series()
    (scores,) = [folder for folder in (series["CFG-Cache"].path / "measured").iterdir() if "psnr" in folder.name]
    decibels = series["CFG-Cache"].measured(scores.name).read(range(config.count))["values"].tolist()
    for index, score in enumerate(decibels):
        a, b = (np.asarray(open_picture(series[name].file(index)), float) for name in ("CFG-Cache", "CFG"))
        assert ((a - b) ** 2).mean() == pytest.approx(255**2 * 10 ** (-score / 10) + 1 / 6, rel=0.4)


def test_pictures_of_the_report_can_be_opened(finished):
    _, path, _ = finished
    for name in ("sheet.png", "frontier.png"):
        with Image.open(path / name) as picture:
            assert min(picture.size) > 300


def test_thg_report_rebuilds_without_generating(finished, capsys):
    _, path, text = finished
    before = {file: file.stat().st_mtime_ns for file in (path / "store").rglob("*.*")}
    for name in ("report.md", "metrics.json", "sheet.png", "frontier.png"):
        (path / name).unlink()
    assert main(["report", str(path)]) == 0
    assert text in capsys.readouterr().out
    assert (path / "report.md").exists()
    assert (path / "sheet.png").exists()
    assert {file: file.stat().st_mtime_ns for file in (path / "store").rglob("*.*")} == before


def test_a_score_that_was_not_taken_is_taken_from_the_files(home, tmp_path):
    config = config_in(home, count=3)
    quietly(config, tmp_path / "run")
    on_floats = {r.name: r for r in measured(config, tmp_path / "run").rows}["thg uniform"].metrics["psnr"]
    shutil.rmtree(run_in(config, tmp_path / "run").series()["thg uniform"].path / "measured")
    from_files = {r.name: r for r in measured(config, tmp_path / "run").rows}["thg uniform"].metrics["psnr"]
    assert on_floats - 6 < from_files < on_floats  # rounding to bytes adds to the difference


def test_set_metrics_take_their_reference_from_a_file(home, finished):
    config, path, _ = finished
    given = {**config.source, "metrics": ["judge_frechet"]}
    assert "[references] with statistics.judge_frechet" in measured(parse_config(given, home), path).skipped[0][1]
    given["references"] = {"statistics": {"judge_frechet": str(STATISTICS)}}
    found = measured(parse_config(given, home), path)
    assert not found.skipped
    assert found.rows[0].metrics["judge_frechet"] > 0


# -- bad input


def test_an_unfinished_run_has_no_report(home, tmp_path, capsys):
    config = config_in(home, count=3)
    quietly(config, tmp_path / "run")
    sample_file(tmp_path / "run", "cfg/000001.json").unlink()
    with pytest.raises(RunFolderError, match="1 samples are missing"):
        rebuild_report(tmp_path / "run")
    assert not (tmp_path / "run/report.md").exists()
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "run thg bench again" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_an_error_in_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_a_broken_picture_of_a_run_is_named(home, tmp_path):
    quietly(config_in(home, count=3, metrics=["psnr", "ssim"]), tmp_path / "run")
    sample_file(tmp_path / "run", "cfg/000001.png").write_bytes(b"no")
    with pytest.raises(RunFolderError, match=r"000001.png"):
        rebuild_report(tmp_path / "run")


def test_bench_prints_the_table_and_names_the_report(home, tmp_path, capsys):
    file = home / "small.toml"
    given = values()
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items() if not isinstance(value, dict | list)]
    lines += ['metrics = ["psnr"]', "[model]", f'source = "{home}/model"', "[prompts]", 'file = "prompts.txt"']
    for method in given["methods"]:
        lines += ["[[methods]]", *(f"{key} = {json.dumps(value)}" for key, value in method.items())]
    file.write_text("\n".join(lines))
    assert main(["bench", "--config", str(file), "--out", str(tmp_path / "run"), "--count", "2", "--quiet"]) == 0
    out = capsys.readouterr()
    assert "| thg uniform |" in out.out
    assert "report.md" in out.out
    assert main(["bench", "--config", str(home / "no.toml")]) == 2
    assert "no.toml" in capsys.readouterr().err


# -- pictures


def test_the_magnified_region_is_where_pictures_differ():
    pictures = [np.zeros((32, 32), np.uint8) for _ in range(3)]
    pictures[1][20:24, 4:8] = 200
    left, top, right, bottom = most_different([Image.fromarray(picture) for picture in pictures])
    assert left <= 4 and right >= 8 and top <= 20 and bottom >= 24  # noqa: PT018


def test_a_sheet_of_colour_pictures_shows_the_named_region_enlarged():
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:10, :10] = (0, 200, 0)
    columns = [Column(name, "70 evaluations", [Image.fromarray(pixels)] * 2) for name in ("CFG", "a long name " * 5)]
    plain = sheet(["one", "two " * 100], columns)
    enlarged = sheet(["one", "two " * 100], columns, [(0, 0, 10, 10), (0, 0, 10, 10)])
    green = [(np.asarray(page) == (0, 200, 0)).all(-1).sum() for page in (plain, enlarged)]
    assert enlarged.width == plain.width > 2 * 160
    assert green[1] > 4 * 150**2 > 10 * green[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("thg uniform 70", "thg uniform"), ("CFG, 35 steps", "CFG"), ("THG", "THG"), ("7", "7")],
)
def test_budgets_do_not_make_another_family(name, expected):
    assert family(name) == expected


def test_a_frontier_needs_two_points(tmp_path):
    points = [Point("a", "uniform", 70, 30.0), Point("b", "cfg-cache", 80, 35.0)]
    assert not draw_frontier(points[:1], tmp_path / "f.png", "t")
    assert draw_frontier(points, tmp_path / "f.png", "t")
