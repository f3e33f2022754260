"""Makes benchmarks/RESULTS.md: runs the benchmarks on the shipped models and puts their reports into one page.

    python benchmarks/make_results.py

Interrupted runs are resumed; finished ones are not run again. A part that is not run keeps its section of the page.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs" / "results"
COMMANDS = {
    "eps": ["-m", "thg", "bench", "--out", str(RUNS / "eps")],
    "flow": ["-m", "thg", "bench", "--config", str(HERE / "shipped_flow.toml"), "--out", str(RUNS / "flow")],
    **{
        name: ["-m", "thg", "bench", "--config", str(HERE / f"{name}.toml"), "--out", str(RUNS / name)]
        for name in ("shipped_audio", "shipped_emoji_dpm20", "shipped_emoji_dpm30", "shipped_emoji_ddim50")
    },
    "enable": [str(HERE / "bench_enable.py"), "--out", str(RUNS / "enable")],
    "beyond": [str(HERE / "beyond_twice.py"), "--out", str(RUNS / "beyond")],
    "harness": [str(HERE / "bench_harness.py"), "--out", str(RUNS / "harness")],
}
HEAD = """# Results

Measured on the models included in thg, by `python benchmarks/make_results.py`, which also writes this page. The parts:
`thg bench`, `thg bench --config benchmarks/NAME.toml` with the names shipped_flow, shipped_audio, shipped_emoji_dpm20,
shipped_emoji_dpm30 and shipped_emoji_ddim50, `python benchmarks/bench_enable.py`, `python benchmarks/beyond_twice.py`
and `python benchmarks/bench_harness.py`. The tables of the paper (`benchmarks/*.toml` with
SD 1.5, SD 3.5 Large and AudioLDM 2) need a GPU and their weights and have not been run here.

Seconds were measured on a virtual machine with two cores and vary by 10 to 20 % from run to run; evaluations and
fidelity do not vary. On such small networks half a batch takes more than half the time, and the decoder and Python take
as long as before; "of possible" compares with the speed-up of skipped steps that a run without guidance measures.
"""


def section(name: str, page: str) -> str:
    """A report without its configuration, one level deeper, with its pictures beside the page."""
    mark = f"<!-- {name} -->\n"
    if not (RUNS / name / "report.md").exists():
        return mark + page.partition(mark)[2].partition("<!-- ")[0].strip() + "\n"
    text = (RUNS / name / "report.md").read_text(encoding="utf-8").partition("\n## Configuration")[0]
    for picture in re.findall(r"\]\(([^)]+\.png)\)", text):
        target = HERE / "results" / f"{name}-{picture}"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((RUNS / name / picture).read_bytes())
        text = text.replace(f"]({picture})", f"](results/{name}-{picture})")
    return mark + re.sub(r"^#", "##", text, flags=re.MULTILINE).strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=list(COMMANDS), default=list(COMMANDS), help="run these parts only"
    )
    options = parser.parse_args()
    for name in options.only:
        subprocess.run([sys.executable, *COMMANDS[name]], check=True)
    page = (HERE / "RESULTS.md").read_text(encoding="utf-8")
    parts = [section(name, page) for name in COMMANDS]
    (HERE / "RESULTS.md").write_text("\n".join([HEAD, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
