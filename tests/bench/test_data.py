"""Prompt files, reference folders and statistics files: what people really have, and what goes wrong."""

import csv
import json
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from thg.bench.data import (
    DataError,
    hub_prompts,
    paired_files,
    read_prompts,
    read_references,
    read_statistics,
    write_statistics,
)
from thg.bench.data.references import files_below, read_sound
from thg.bench.metrics.inception import FID, KID
from thg.errors import MissingExtraError
from thg.prompts import first_text

PUBLIC = Path(__file__).parents[3] / "shared" / "data"


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


def save_pictures(folder, sizes):
    folder.mkdir(exist_ok=True)
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (number, 0, 255)).save(folder / f"{number:03}.png")
    return folder


def test_pictures_of_all_sizes_come_in_one_batch_and_broken_ones_are_left_out(tmp_path):
    folder = save_pictures(tmp_path / "pictures", [(8, 6)] * 3 + [(4, 4)] * 2)
    (folder / "002.png").write_bytes((folder / "002.png").read_bytes()[:40])
    (folder / "sub").mkdir()
    Image.new("L", (4, 4), 77).save(folder / "sub" / "grey.JPG")
    (folder / "notes.txt").write_text("not a picture")
    paths = files_below(folder)
    assert len(paths) == 6
    places, (batch,) = read_references(paths)
    assert places == [0, 1, 3, 4, 5]
    assert [tuple(picture.shape) for picture in batch.samples] == [(3, 6, 8)] * 2 + [(3, 4, 4)] * 3
    assert batch.samples[1][:, 0, 0].tolist() == [1, 0, 255]
    assert read_references([folder / "002.png"]) == ([], [])


def test_the_references_that_belong_to_prompts(tmp_path):
    file = write(tmp_path / "pairs.csv", "id,start,caption\r\na,10,a dog\r\nb,20,\r\nc,30,a cat\r\n")
    assert paired_files(file, "caption", "{id}_{start}.wav", 2) == ["a_10.wav", "c_30.wav"]
    with pytest.raises(DataError, match=r"does not fit .*pairs.csv: it has the columns 'id', 'start', 'caption'"):
        paired_files(file, "caption", "{name}.wav", 2)


def save_wav(path, values, width, channels=1, rate=8000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(values)
    return path


@pytest.mark.parametrize(
    ("width", "raw"),
    [
        (1, np.array([128, 192, 0], np.uint8).tobytes()),
        (2, np.array([0, 2**14, -(2**15)], "<i2").tobytes()),
        (3, b"\x00\x00\x00" + b"\x00\x00\x40" + b"\x00\x00\x80"),
        (4, np.array([0, 2**30, -(2**31)], "<i4").tobytes()),
    ],
)
def test_wav_files_of_all_widths(tmp_path, width, raw):
    sound, rate = read_sound(save_wav(tmp_path / "s.wav", raw, width))
    assert sound.tolist() == [0, 0.5, -1]
    assert rate == 8000


@pytest.mark.parametrize("content", [b"", b"RIFF", b"not a sound at all"])
def test_a_file_that_is_no_sound_is_named(tmp_path, content):
    (tmp_path / "s.wav").write_bytes(content)
    with pytest.raises(DataError, match=r"s\.wav is not a wav file"):
        read_sound(tmp_path / "s.wav")


def test_sounds_of_a_folder(tmp_path):
    stereo = np.array([[2**14, 0], [2**14, 2**14]], "<i2").tobytes()
    save_wav(tmp_path / "a.wav", stereo, 2, channels=2, rate=16_000)
    save_wav(tmp_path / "b.wav", b"", 2)
    (tmp_path / "c.wav").write_bytes(b"RIFF")
    save_wav(tmp_path / "d.wav", np.array([2**14], "<i2").tobytes(), 2)
    places, batches = read_references(files_below(tmp_path))
    assert [[sound.tolist() for sound in batch.samples] for batch in batches] == [[[0.25, 0.5]], [[0.5]]]
    assert [batch.sample_rate for batch in batches] == [16_000, 8000]
    assert places == [0, 3]


def test_statistics_there_and_back(tmp_path):
    metric = FID(lambda batch: batch.samples)
    rows = torch.randn(20, 4, dtype=torch.float64)
    metric.use_rows(rows)
    write_statistics(tmp_path / "s.safetensors", metric.statistics())
    again = read_statistics(tmp_path / "s.safetensors")
    assert int(again["n"]) == 20
    torch.testing.assert_close(again["sigma"], rows.T.cov())


def test_statistics_of_clean_fid(tmp_path):
    np.savez_compressed(tmp_path / "fid.npz", mu=np.zeros(3), sigma=np.eye(3))
    np.savez_compressed(tmp_path / "kid.npz", feats=np.ones((5, 3), np.float32))
    fid, kid = FID(lambda batch: batch.samples), KID(lambda batch: batch.samples)
    fid.use_statistics(read_statistics(tmp_path / "fid.npz"))
    kid.use_statistics(read_statistics(tmp_path / "kid.npz"))
    rows = torch.randn(50, 3)
    covariance = rows.double().T.cov()
    root = torch.linalg.eigvalsh(covariance).sqrt().sum()
    assert fid.reduce(rows) == pytest.approx(
        float(rows.double().mean(0).square().sum() + covariance.trace() + 3 - 2 * root)
    )
    assert kid.statistics()["features"].shape == (5, 3)


def test_a_pickled_statistics_file_is_not_opened(tmp_path):
    np.savez(tmp_path / "evil.npz", mu=np.array([{"a": 1}], dtype=object), sigma=np.eye(1))
    with pytest.raises(DataError, match="cannot read the statistics"):
        read_statistics(tmp_path / "evil.npz")


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"mean": np.zeros(3)}, "statistics have mu and sigma"),
        ({"mu": np.zeros(3), "sigma": np.eye(2)}, "do not belong together"),
        ({"mu": np.full(2, np.nan), "sigma": np.eye(2)}, "NaN"),
        ({"feats": np.zeros(3)}, r"not \(samples, features\)"),
    ],
)
def test_statistics_that_cannot_be_used(tmp_path, tensors, said):
    np.savez(tmp_path / "s.npz", **tensors)
    with pytest.raises(DataError, match=said):
        read_statistics(tmp_path / "s.npz")


def test_statistics_files_by_their_names(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read_statistics(tmp_path / "absent.npz")
    (tmp_path / "torn.safetensors").write_bytes(b"\x01")
    with pytest.raises(DataError, match="cannot read"):
        read_statistics(tmp_path / "torn.safetensors")
    with pytest.raises(DataError, match=r"\.safetensors or \.npz"):
        read_statistics(tmp_path / "stats.pkl")
    with pytest.raises(DataError, match=r"as \.safetensors"):
        write_statistics(tmp_path / "stats.npz", {"mu": torch.zeros(1)})
