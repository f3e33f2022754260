"""Prompt files and datasets: what people really have, and what goes wrong."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from thg.errors import MissingExtraError
from thg.prompts import DataError, first_text, hub_prompts, paired_files, read_prompts

PUBLIC = Path(__file__).parents[2] / "shared" / "data"


def public(name):
    path = PUBLIC / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the repository")
    return path


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def test_coco_captions_as_they_are():
    path = public("coco_captions_30k.csv")
    prompts = read_prompts(path)
    assert prompts == [line.strip() for line in path.read_text(encoding="utf-8").split("\n")[1:]]
    assert len(prompts) == 30_000
    assert '"Head shot" of a zebra against a stark background.' in prompts


def test_audiocaps_as_it_is():
    path = public("audiocaps_val.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert read_prompts(path) == [row["caption"].strip() for row in rows]
    assert read_prompts(path, column="youtube_id", count=1) == ["vfY_TJq7n_U"]
    assert len(read_prompts(path, count=2230)) == 2230


def test_partiprompts_as_they_are():
    path = public("PartiPrompts.tsv")
    prompts = read_prompts(path)
    assert prompts == [line.split("\t")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    assert len(prompts) == 1632
    assert any(prompt.startswith('"G I G G L E" painted') for prompt in prompts)


def test_a_csv_from_another_program(tmp_path):
    text = (
        '\ufeffid,Prompt\r\n1,"a dog, running"\r\n\r\n2,"two\r\nlines"\r\n3,"she said ""hi"""\r\n4,\r\n5,  plain  \r\n'
    )
    assert read_prompts(write(tmp_path / "p.csv", text)) == ["a dog, running", "two\r\nlines", 'she said "hi"', "plain"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_csv_agrees_with_pythons_csv_on_well_formed_files(tmp_path, line_end):
    rows = [["n", "caption"], ["1", 'a "b", c'], ["2", ""], ["3", f"x{line_end}y"], ["4", "c, d, e"], ["", "last"]]
    path = tmp_path / "p.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator=line_end).writerows(rows)
    assert read_prompts(path) == [caption for _, caption in rows[1:] if caption]


def test_a_single_column_has_no_delimiter(tmp_path):
    text = 'caption\na cat, a dog\n"quoted, in full"\n"half" quoted, not whole\n"never closed\nlast'
    assert read_prompts(write(tmp_path / "p.csv", text)) == [
        "a cat, a dog",
        "quoted, in full",
        '"half" quoted, not whole',
        '"never closed',
        "last",
    ]


def test_jsonl_and_txt(tmp_path):
    lines = [json.dumps({"text": "one", "id": 1}), "", json.dumps({"text": "zwei\nZeilen", "id": 2})]
    path = write(tmp_path / "p.jsonl", "\ufeff" + "\r\n".join(lines) + "\r\n")
    assert read_prompts(path) == ["one", "zwei\nZeilen"]
    assert read_prompts(write(tmp_path / "s.jsonl", '"one"\n"two"')) == ["one", "two"]
    assert read_prompts(write(tmp_path / "p.txt", "\ufeffone, and more\r\n\r\n  two \n")) == ["one, and more", "two"]
    assert read_prompts(tmp_path / "p.txt", count=1) == ["one, and more"]


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("p.csv", "id,title\n1,a\n", {"column": "prompt"}, "no column 'prompt'.*'id', 'title'"),
        ("p.csv", "id,title\n1,a\n", {}, "which column holds the prompts.*column='id'"),
        ("p.csv", "prompt,caption\na,b\n", {}, "column='prompt'"),
        ("p.csv", "prompt,id\na dog, running,1\n", {}, "line 2 of .* has 3 fields, its header 2"),
        ("p.csv", "\n\n", {}, "is empty"),
        ("p.csv", "prompt\n\n \n", {}, "no usable line"),
        ("p.txt", "", {}, "no usable line"),
        ("p.txt", "one\ntwo\n", {"count": 3}, "has 2 prompts, 3 were asked for: ask for 2 or fewer"),
        ("p.txt", "one\n", {"count": 0}, "one prompt or more"),
        ("p.txt", "one\n", {"column": "prompt"}, "has no columns"),
        ("p.jsonl", '{"prompt": "a"}\n{oops\n', {}, "line 2 of .* is not JSON"),
        ("p.jsonl", '{"prompt": "a"}\n{"text": 3}\n', {}, "line 2 of .* holds 3"),
        ("p.jsonl", '{"a": "x", "b": "y"}\n', {"column": "c"}, "'a', 'b'"),
        ("p.jsonl", '"x"\n', {"column": "c"}, "not an object"),
        ("p.xlsx", "x", {}, r"\.csv, \.tsv, \.jsonl or \.txt"),
    ],
)
def test_prompt_files_that_cannot_be_used(tmp_path, name, text, options, said):
    with pytest.raises(DataError, match=said):
        read_prompts(write(tmp_path / name, text), **options)


def test_files_that_are_not_there_or_not_utf8(tmp_path):
    with pytest.raises(DataError, match="cannot read the prompt file"):
        read_prompts(tmp_path / "absent.txt")
    with pytest.raises(DataError, match="save it as UTF-8"):
        read_prompts(write(tmp_path / "p.txt", "caf\u00e9", "latin-1"))


def test_hub_datasets_need_the_extra():
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"tortoise-hare-guidance\[datasets\]"):
            hub_prompts("nobody/nothing")
    else:
        with pytest.raises(DataError, match="nobody/nothing"):
            hub_prompts("nobody/nothing")


def test_cells_of_hub_datasets():
    assert [first_text(cell) for cell in ("a", ["b", "c"], [], None)] == ["a", "b", "", ""]


def test_the_references_that_belong_to_prompts(tmp_path):
    file = write(tmp_path / "pairs.csv", "id,start,caption\r\na,10,a dog\r\nb,20,\r\nc,30,a cat\r\n")
    assert paired_files(file, "caption", "{id}_{start}.wav", 2) == ["a_10.wav", "c_30.wav"]
    with pytest.raises(DataError, match=r"does not fit .*pairs.csv: it has the columns 'id', 'start', 'caption'"):
        paired_files(file, "caption", "{name}.wav", 2)


def test_the_commands_read_prompts_without_the_benchmark():
    code = "import sys, thg.cli.generate, thg.cli.calibration\n"
    code += "print([m for m in sys.modules if m.startswith('thg.bench')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"
