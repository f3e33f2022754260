"""Makes the list of prompt-picture pairs that the configurations read: benchmarks/data/coco_pairs.csv.

    python benchmarks/make_pairs.py captions_val2014.json --prompts coco_captions_30k.csv

captions_val2014.json is in COCO's annotations_trainval2014.zip. With --prompts, each caption of that list is looked up
there and paired with its picture, so that the prompts are the very ones of the list; without, --count pictures are
drawn, and one caption of each. The names of the pictures are those of COCO's val2014.zip.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
from pathlib import Path

from thg.files import write_atomically
from thg.prompts import DataError, read_prompts

TARGET = Path(__file__).parent / "data" / "coco_pairs.csv"


def captions_of(annotations: Path) -> list[tuple[str, str]]:
    """All (caption, file name), in the order of the annotations."""
    content = json.loads(annotations.read_text(encoding="utf-8"))
    names = {image["id"]: image["file_name"] for image in content["images"]}
    return [(_plain(row["caption"]), names[row["image_id"]]) for row in content["annotations"]]


def paired(prompts: list[str], captions: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each prompt with a picture that it is a caption of; of several pictures, each is taken once if possible."""
    by_caption: dict[str, list[str]] = {}
    for caption, name in captions:
        by_caption.setdefault(caption, []).append(name)
    unknown = [prompt for prompt in prompts if _plain(prompt) not in by_caption]
    if unknown:
        raise DataError(
            f"{len(unknown)} of {len(prompts)} prompts are no captions of this file, such as {unknown[0]!r}"
        )
    rows = []
    for prompt in prompts:
        names = by_caption[_plain(prompt)]
        rows.append((prompt, names.pop(0) if len(names) > 1 else names[0]))
    return rows


def drawn(captions: list[tuple[str, str]], count: int, seed: int) -> list[tuple[str, str]]:
    """One caption each of some pictures."""
    first: dict[str, str] = {}
    for caption, name in captions:
        first.setdefault(name, caption)
    if count > len(first):
        raise DataError(f"there are {len(first)} pictures, {count} were asked for")
    chosen = random.Random(seed).sample(sorted(first), count)
    return [(first[name], name) for name in chosen]


def _plain(text: str) -> str:
    return " ".join(text.split())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", type=Path, help="captions_val2014.json")
    parser.add_argument("--prompts", type=Path, help="a list of captions to pair (csv with the column Prompt)")
    parser.add_argument("--count", type=int, default=30_000, help="pictures to draw without --prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args(arguments)
    captions = captions_of(options.annotations)
    if options.prompts:
        rows = paired(read_prompts(options.prompts), captions)
    else:
        rows = drawn(captions, options.count, options.seed)
    text = io.StringIO()
    csv.writer(text).writerows([("caption", "file_name"), *rows])
    write_atomically(options.out, text.getvalue().encode())
    print(f"{options.out}: {len(rows)} pairs of {len({name for _, name in rows})} pictures")


if __name__ == "__main__":
    main()
