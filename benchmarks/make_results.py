"""Makes benchmarks/RESULTS.md: runs the benchmarks on the shipped models and puts their reports into one page.

    python benchmarks/make_results.py
    python benchmarks/make_results.py --count 16      # fewer samples; each table says how many
    python benchmarks/make_results.py --only eps flow

Interrupted runs are resumed, and samples that the same code has made are not made again. A part that is not run keeps
its section of the page. The page is refused if its parts were measured on several commits, unless --mixed is given.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
TABLES = {"eps": None, "flow": "shipped_flow"}  # thg bench; without a name the configuration of the package
TABLES |= {
    name: name for name in ("shipped_audio", "shipped_emoji_dpm20", "shipped_emoji_dpm30", "shipped_emoji_ddim50")
}
TABLES |= {name: name for name in ("converged_eps", "converged_flow", "converged_emoji")}
SCRIPTS = {
    "enable": "bench_enable.py",
    "enable_emoji": "bench_enable.py --models emoji --threads 2 --steps 20 --repeats 4 --families cfg tapered",
    "beyond": "beyond_twice.py",
    "harness": "bench_harness.py",
}
PARTS = [*TABLES, *SCRIPTS]


def command(part: str, out: Path, count: int | None) -> list[str]:
    """The arguments of Python that measure a part, on fewer samples if `count` is given."""
    if part in SCRIPTS:
        fewer = {
            "enable": "--repeats 1 --steps 20",
            "enable_emoji": "--repeats 1",
            "beyond": f"--samples {count}",
            "harness": "--repeats 1 --samples 50 200",
        }[part]
        script, *options = SCRIPTS[part].split()
        return [str(HERE / script), *options, "--out", str(out), *(fewer.split() if count else [])]
    table = TABLES[part]
    config = [] if table is None else ["--config", str(HERE / f"{table}.toml")]
    return ["-m", "thg", "bench", *config, "--out", str(out), *(["--count", f"{count}"] if count else [])]


HEAD = """# Results

Measured on the models included in thg, by `python benchmarks/make_results.py`, which also writes this page. The parts:
`thg bench`, `thg bench --config benchmarks/NAME.toml` with the names shipped_flow, shipped_audio, shipped_emoji_dpm20,
shipped_emoji_dpm30, shipped_emoji_ddim50, converged_eps, converged_flow and converged_emoji,
`python benchmarks/bench_enable.py`, `python benchmarks/beyond_twice.py` and `python benchmarks/bench_harness.py`. The
tables of the paper (`benchmarks/*.toml` with SD 1.5, SD 3.5 Large and AudioLDM 2) need a GPU and their
weights and have not been run here.

Seconds were measured on a virtual machine with two cores and vary by 10 to 20 % from run to run; evaluations and
fidelity do not vary. Two parts were measured at a time, each with one thread; thg.enable on the emoji model alone, with
both cores. On such small networks half a batch takes more than half the time, and the decoder and Python take as long
as before; "of possible" compares with the speed-up of skipped steps that a run without guidance measures.
"""


def section(name: str, runs: Path, pictures: Path, page: str) -> str:
    """A report without its configuration, one level deeper; its pictures are copied."""
    mark = f"<!-- {name} -->\n"
    if not (runs / name / "report.md").exists():
        return mark + page.partition(mark)[2].partition("<!-- ")[0].strip() + "\n"
    text = (runs / name / "report.md").read_text(encoding="utf-8").partition("\n## Configuration")[0]
    for picture in re.findall(r"\]\(([^)]+\.png)\)", text):
        pictures.mkdir(exist_ok=True)
        (pictures / f"{name}-{picture}").write_bytes((runs / name / picture).read_bytes())
        text = text.replace(f"]({picture})", f"]({pictures.name}/{name}-{picture})")
    return mark + re.sub(r"^#", "##", text, flags=re.MULTILINE).strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="run these parts only")
    parser.add_argument("--count", type=int, help="samples of each table (default: as many as its configuration says)")
    parser.add_argument("--runs", type=Path, default=HERE.parent / "runs" / "results", help="where the parts are kept")
    parser.add_argument("--page", type=Path, default=HERE / "RESULTS.md", help="the page to write")
    parser.add_argument("--mixed", action="store_true", help="write the page also if its parts are of several commits")
    options = parser.parse_args()
    for name in options.only:
        started = time.monotonic()
        subprocess.run([sys.executable, *command(name, options.runs / name, options.count)], check=True)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    page = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
    parts = [section(name, options.runs, options.page.parent / "results", page) for name in PARTS]
    commits = {found for part in parts for found in re.findall(r"commit (\w+)", part)}
    if len(commits) > 1 and not options.mixed:
        sys.exit(f"the parts are of several commits, {', '.join(sorted(commits))}; run all, or write --mixed")
    options.page.write_text("\n".join([HEAD, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
