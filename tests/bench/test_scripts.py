"""The scripts beside the configurations: pairs of captions and pictures, and the grids of the paper's appendix."""

import csv
import json
import re

import pytest

pytest.importorskip("diffusers", reason="the scripts run pipelines")

from benchmarks import grid_stability, make_pairs
from tests.bench.runs import save_model
from thg.prompts import DataError, paired_files, read_prompts

PAPER = (*range(7), 8, 10, 12, 14, 17, 20, 23, 26, 28, 30, 32, 34, 36, *range(38, 50))
TRIAL_8 = (*range(6), 7, 9, 11, 13, 16, 19, 22, 25, 28, 30, 32, 34, 36, *range(38, 50))


@pytest.fixture
def annotations(tmp_path):
    """The form of COCO's captions_val2014.json."""
    images = [{"id": number, "file_name": f"COCO_val2014_{number:012}.jpg"} for number in (7, 8, 9)]
    captions = [(7, "A dog runs."), (7, "a  brown dog "), (8, "A cat sits."), (9, "A cat sits."), (9, "A grey cat.")]
    content = {"images": images, "annotations": [{"image_id": i, "caption": caption} for i, caption in captions]}
    (tmp_path / "captions.json").write_text(json.dumps(content))
    return tmp_path / "captions.json"


def test_captions_of_a_list_are_paired_with_their_pictures(annotations, tmp_path, capsys):
    (tmp_path / "list.csv").write_text("Prompt\nA cat sits.\na brown dog\nA cat sits.\n")
    out = tmp_path / "pairs.csv"
    make_pairs.main([str(annotations), "--prompts", str(tmp_path / "list.csv"), "--out", str(out)])
    assert "3 pairs of 3 pictures" in capsys.readouterr().out
    assert read_prompts(out, "caption") == ["A cat sits.", "a brown dog", "A cat sits."]
    files = paired_files(out, "caption", "{file_name}", 3)
    assert [int(re.findall(r"\d{12}", name)[0]) for name in files] == [8, 7, 9]
    (tmp_path / "list.csv").write_text("Prompt\nA horse\n")
    with pytest.raises(DataError, match="1 of 1 prompts are no captions of this file, such as 'A horse'"):
        make_pairs.main([str(annotations), "--prompts", str(tmp_path / "list.csv"), "--out", str(out)])


def test_pairs_are_drawn_once_a_picture(annotations, tmp_path):
    make_pairs.main([str(annotations), "--count", "3", "--out", str(tmp_path / "pairs.csv")])
    with (tmp_path / "pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({row["file_name"] for row in rows}) == 3
    assert {row["caption"] for row in rows} == {"A dog runs.", "A cat sits."}


def test_the_index_of_the_papers_eighth_trial():
    assert grid_stability.iou(PAPER, TRIAL_8) == pytest.approx(0.575)
    assert grid_stability.as_printed((0, 1, 4), 6) == "{0, 1, 4, 6}"


def test_grids_of_any_pipeline_over_scales_and_trajectories(tmp_path, capsys):
    save_model(tmp_path)
    words = ["--model", str(tmp_path / "model"), "--prompts", str(tmp_path / "prompts.txt"), "--samples", "4"]
    words += ["--subset", "2", "--trials", "3", "--steps", "6", "--batch-size", "4", "--scales", "6.5", "7.5", "8.5"]
    grid_stability.main([*words, "--rho", "1.1", "--device", "cpu", "--out", str(tmp_path / "grids")])
    lines = capsys.readouterr().out.splitlines()
    scales = [line.split("|") for line in lines if re.match(r"\| [678]\.5 ", line)]
    assert [row[1].strip() for row in scales] == ["6.5", "6.5", "7.5", "8.5", "8.5"]
    assert [row[2].strip() for row in scales] == ["0.93", "1.10", "1.10", "1.10", "1.27"]
    assert all(re.fullmatch(r" \{0(, \d+)*, 6\} ", row[5]) for row in scales)
    trials = [line for line in lines if "(trial" in line]
    assert len(trials) == 3
    assert any("Mean IoU over 3 trials" in line for line in lines)
