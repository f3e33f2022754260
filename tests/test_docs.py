"""The documentation: it builds, it loads nothing from elsewhere, and what it says of the code is so."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionXLPipeline,
    UniPCMultistepScheduler,
)
from PIL import Image

import thg
from tests import forked, tiny_hub
from thg.bench.config import load_config, parse_config
from thg.bench.methods import methods
from thg.bench.metrics import metric_names
from thg.bench.samples import Samples
from thg.cli import COMMANDS
from thg.cli.bench import evaluations
from thg.cli.parser import command_line

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "docs" / "changes-0.2.md"  # names what is gone
PAGES = sorted({*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"} - {HISTORY})
NOTEBOOK = ROOT / "examples" / "how_it_works.ipynb"
PICTURES = 5  # in the notebook
NAME = re.compile(r"(?<![\w./-])thg(?:\.[A-Za-z_]\w*)+")
ENTRY_POINTS = ("thg.bench.methods", "thg.bench.metrics")  # groups under which other packages register theirs
ANSWERED = ("thg.evaluations", "thg.plain_evaluations", "thg.estimated_error")  # keys in a serving engine's answer
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


def each_page(function):
    return pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])(function)


# -- the site


class Page(HTMLParser):
    """What a page loads, where its links go, and the anchors in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given["id"]} if given.get("id") else set()
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in LOADS and given.get(LOADS[tag]):
            self.loads.append(given[LOADS[tag]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The site, built."""
    folder = tmp_path_factory.mktemp("site")
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def site(folder):
    return {path.name: Page(path) for path in folder.glob("*.html")}


def test_the_site_has_every_page(site):
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {Path(name).stem for name in site}


def test_the_site_loads_nothing_from_elsewhere(site, folder):
    assert not [(name, load) for name, page in site.items() for load in page.loads if "//" in load]
    styles = list(folder.rglob("*.css"))
    assert styles
    assert not [path for path in styles if re.search(r"@import|url\(['\"]?(https?:)?//", path.read_text())]


def test_links_to_functions_lead_to_them(site):
    targets = [link.partition("#")[2] for name, page in site.items() for link in page.links if "api.html#" in link]
    assert len(targets) > 20
    assert not set(targets) - site["api.html"].anchors


def test_the_reference_has_every_public_name(site):
    public = {f"thg.{name}" for name in thg.__all__ if name != "__version__"}
    public = public - {"thg.PRESETS"} | {"thg.plans.PRESETS"}
    assert not public - site["api.html"].anchors


def test_the_reference_is_current_and_can_be_read_on_a_code_host():
    made = from_docs("make_reference")
    remedy = "write python docs/make_reference.py"
    assert (ROOT / "docs" / "api.md").read_text() == made.reference(), remedy
    extending = (ROOT / "docs" / "extending.md").read_text()
    assert extending == made.extending(extending), remedy
    assert extending.count("<!-- from examples/") == extending.count("<!-- from ") == 4
    assert not [page.name for page in PAGES if re.search(r"^(::: |--8<--)", page.read_text(), re.MULTILINE)]


def from_docs(name: str):
    """A script of the folder docs."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs"))


# -- what it says of the code


@each_page
def test_names_exist(page):
    for name in NAME.findall(page.read_text()):
        assert name in (*ENTRY_POINTS, *ANSWERED) or resolve(name), f"{page.name} names {name}, which does not exist"


def resolve(name: str) -> bool:
    """Is there such a module, or such an attribute of one?"""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
            for part in parts[cut:]:
                value = getattr(value, part, None) or getattr(value, "__dataclass_fields__", {})[part]
        except (ImportError, KeyError):
            continue
        return True
    return False


def test_nothing_recommends_to_install_the_namesake():
    """On PyPI, `thg` is another project."""
    folders = ("src", "docs", "examples", "benchmarks", "training", ".")
    files = [path for folder in folders for path in (ROOT / folder).glob("*" if folder == "." else "**/*")]
    texts = [
        path for path in files if path.suffix in (".py", ".md", ".toml", ".html", ".js", ".ipynb", ".json", ".cff")
    ]
    assert len(texts) > 100
    namesake = re.compile(r"pip install [\"']?thg\b|[\"' ]thg\[\w")
    assert not [path for path in texts if namesake.search(path.read_text(encoding="utf-8"))]


def test_the_map_of_the_code_is_the_tree():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    layout = text.partition("## How the code is laid out")[2].partition("\n## ")[0]
    picture = [line[4:38].rstrip() for line in layout.splitlines() if line.startswith("    ")]
    parents, mapped = [], set()
    for line in picture:
        depth = (len(line) - len(line.lstrip())) // 2
        parents = parents[:depth]
        if line.endswith("/"):
            parents.append(line.strip(" /"))
        else:
            mapped |= {"/".join([*parents, name]) for name in line.split()}
    source = ROOT / "src" / "thg"
    modules = (path.relative_to(source).with_suffix("") for path in source.rglob("*.py"))
    assert mapped == {module.as_posix() for module in modules if not module.name.startswith("__")}


@each_page
def test_paths_exist(page):
    for path in re.findall(r"`((?:examples|tests|benchmarks|docs|training)/[\w./*-]+)`", page.read_text()):
        made_by_a_command = path in ("benchmarks/RESULTS.md", "benchmarks/data/")
        assert made_by_a_command or list(ROOT.glob(path.rstrip("/"))), f"{page.name} names {path}"


@each_page
def test_links_lead_to_files_and_sections(page):
    for target, section in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if section and path.name != "api.md":  # whose sections are made from the docstrings: above
            assert section in sections(path.read_text()), f"{page.name} links to {target}#{section}"
    for picture in re.findall(r'<img src="([^"]+)"', page.read_text()):
        assert (page.parent / picture).is_file(), f"{page.name} shows {picture}"


def sections(text: str) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@each_page
def test_commands_take_the_options_that_are_named(page):
    for line in commands(page.read_text()):
        words = shlex.split(line, comments=True)
        words = words[words.index("thg") + 1 :]
        words = [word for word in words if word not in ("&", "...")]
        if not words or words[0] not in COMMANDS:
            raise AssertionError(f"{page.name}: there is no command {line!r}")
        command_line().parse_args(words)


def commands(text: str) -> list[str]:
    """The lines of shell blocks that run thg."""
    blocks = [body for language, body in FENCE.findall(text) if language in ("", "sh", "bash")]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"(thg|(accelerate launch|torchrun) .* -m thg)( |$)", line)]


def test_the_configuration_that_is_shown_is_valid():
    found = FENCE.findall((ROOT / "docs" / "benchmark.md").read_text())
    (block,) = [body for language, body in found if language == "toml"]
    assert [method.name for method in parse_config(tomllib.loads(block), ROOT / "benchmarks").methods] == [
        "CFG",
        "CFG, DPM++ 2M",
        "THG",
    ]


def test_the_costs_of_the_papers_tables_follow_from_their_configurations():
    rows = re.findall(r"^\| `(benchmarks/\w+\.toml)` \|(.*) \|$", (ROOT / "docs" / "reproduce.md").read_text(), re.M)
    tables = [(name, [cell.strip() for cell in row.split("|")][1:]) for name, row in rows if "minutes" not in row]
    assert len(tables) == 9
    for name, costs in tables:
        config = load_config(ROOT / name)
        shape = {"audioldm2": (160_000,), "sd35_large": (3, 1024, 1024)}.get(Path(name).stem, (3, 512, 512))
        sample = Samples(torch.zeros(1, *shape), 16_000 if len(shape) == 1 else None)
        disk = f"{config.count * len(config.methods) * sample.bytes_on_disk() / 1e9:.1f} GB"
        evaluated = evaluations(config)
        assert costs == [str(len(config.methods)), f"{evaluated / 1e6:.3g}", f"{evaluated / 360_000:.3g}", disk], name


STABLE_DIFFUSION = {  # what Stable Diffusion 1.5 and XL publish of their schedulers
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "steps_offset": 1,
    "timestep_spacing": "leading",
}
SAMPLERS = {  # rows of README's table: the schedulers that they name
    "Euler, DDIM, DPM++ 2M, UniPC, flow models": [
        EulerDiscreteScheduler(**STABLE_DIFFUSION),
        DDIMScheduler(**STABLE_DIFFUSION, clip_sample=False, set_alpha_to_one=False),
        DPMSolverMultistepScheduler(**STABLE_DIFFUSION),
        UniPCMultistepScheduler(**STABLE_DIFFUSION),
        FlowMatchEulerDiscreteScheduler(shift=3.0),  # SD 3
        UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0),  # Wan
    ],
    "with Karras' noise levels": [DPMSolverMultistepScheduler(**STABLE_DIFFUSION, use_karras_sigmas=True)],
    "PNDM (what SD 1.5 comes with)": [PNDMScheduler(**STABLE_DIFFUSION, skip_prk_steps=True, set_alpha_to_one=False)],
    "Euler a, SDE (add noise at each step)": [
        EulerAncestralDiscreteScheduler(**STABLE_DIFFUSION),
        DPMSolverMultistepScheduler(**STABLE_DIFFUSION, algorithm_type="sde-dpmsolver++"),
    ],
}


@pytest.mark.filterwarnings("ignore")  # that everything is evaluated
def test_what_readme_saves_is_what_the_default_plans():
    text = (ROOT / "README.md").read_text()
    heading, _, *rows = re.search(r"^\| saved at .*\n(?:\|.*\n)+", text, re.M)[0].splitlines()
    scales = [float(scale) for scale in re.findall(r"[\d.]+", heading.split("|")[1])]
    steps = [int(cell) for cell in re.findall(r"\d+", heading.split("|", 2)[2])]
    told = {name.strip(): [cell.strip() for cell in cells] for _, name, *cells, _ in (row.split("|") for row in rows)}
    assert list(told) == list(SAMPLERS)
    assert (scales, steps) == ([5.0, 7.5], [20, 28, 50, 100])
    pipes = {flow: thg.shipped_pipeline("flow" if flow else "eps") for flow in (False, True)}
    for name, schedulers in SAMPLERS.items():
        for scheduler in schedulers:
            flow = "flow" in scheduler.config.get("prediction_type", "flow")
            pipes[flow].scheduler = scheduler
            assert [saved(pipes[flow], count, scales) for count in steps] == told[name], (name, scheduler)


def saved(pipe, steps: int, scales: list[float]) -> str:
    """A cell of README's table: shares of the evaluations, one for each guidance scale."""
    plans = [thg.preview(pipe, steps=steps, guidance_scale=scale) for scale in scales]
    shares = [f"{1 - plan.evaluations / plan.steps:.0%}"[:-1] for plan in plans]
    return "0" if set(shares) == {"0"} else f"{' / '.join(shares)} %"


def test_how_close_readme_says_is_what_the_tables_say():
    text, plans, log = (
        " ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/plans.md", "docs/log.md")
    )
    table = plans.partition("## What it saves")[2].partition("## ")[0]
    decibels = [int(mean) for mean in re.findall(r"\| (\d+) / \d+ (?=\|)", table)]
    assert len(decibels) == 24
    assert f"{min(decibels)} to {max(decibels)} dB on two small models" in text
    cells = re.findall(r"\| emoji \| \w+ \| 5 \| \d+ \| \d+% \| ([\d.]+) / [\d.]+ \| (\d+)% \|", log)
    means, within = [float(mean) for mean, _ in cells], [int(share) for _, share in cells]
    assert f"only {min(within)} to {max(within)} % of its samples are within 1 %" in text
    assert f"with {min(means):.0f} to {max(means):.0f} dB in the mean" in text
    for said in (text, plans):
        assert re.search(r"On 12|on 12", said)
        assert all(number in said for number in ("97 % of the samples", "95 %", "96 % of 312", "92 % in all"))
    assert "in 96 % of 312 cells and at least 90 % in all (least 92 %" in log
    assert re.search(r"\| Karras' levels, [^|]* \| [^|]* \| [^|]* \| 95 % ", log)


def test_readme_prints_what_its_code_prints(tmp_path):
    text = (ROOT / "README.md").read_text()
    told = re.findall(r"^# (.*)$", FENCE.search(text)[0], re.M)
    pipe = StableDiffusionXLPipeline.from_pretrained(tiny_hub.save_sdxl(tmp_path / "sdxl"), variant="fp16")
    pipe.scheduler = EulerDiscreteScheduler(**STABLE_DIFFUSION)  # its own
    thg.enable(pipe)
    pipe("a photograph of a red bicycle")  # as many steps and as much guidance as it has unless told otherwise
    shown = str(thg.summary(pipe)).splitlines()
    assert len(shown) == len(told) == 3
    for line, wanted in zip(told, shown, strict=True):
        assert wanted.startswith(line.removesuffix("...").partition("    ")[0])


def test_the_pictures_of_readme_have_its_numbers():
    text = (ROOT / "README.md").read_text()
    for name in ("plain", "thg"):
        about = about_picture(f"demo-{name}.png")
        cost = f"<br>{about['evaluations']} evaluations<br>{about['seconds']:.2f} s | <img "
        assert f'{cost}src="docs/demo-{name}.png"' in text, "write python docs/make_readme.py strips"
    made = from_docs("make_readme")
    assert about_picture("frontier.png") == made.places(), "write python docs/make_readme.py frontier"


def about_picture(name: str) -> dict:
    with Image.open(ROOT / "docs" / name) as picture:
        return json.loads(picture.text["thg"])


def test_tables_that_repeat_results_have_their_numbers():
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()

    def part(title: str) -> str:
        return results.partition(f"\n## {title}")[2].partition("\n## ")[0]

    beyond = [tuple(row) for row in re.findall(r"\| ([\d.]+) \| ([\d.]+) \|$", part("Beyond twice"), re.M)]
    repeated = re.findall(r"([\d.]+) / ([\d.]+)(?= \(|, with)", (ROOT / "docs" / "faster.md").read_text())
    assert len(repeated) > 20
    assert set(repeated) <= set(beyond)
    models = (ROOT / "docs" / "models.md").read_text()
    sounds = {tuple(table_cells(row)) for row in part("The shipped sound model").splitlines() if row.startswith("| ")}
    shown = [table_cells(row) for row in models.splitlines() if re.match(r"\| .* \| \d+ \| [\d.]+x \|", row)]
    assert len(shown) == 10
    for row in shown:
        assert any(set(row) <= {cell.replace("*", "") for cell in measured} for measured in sounds), row
    emoji = [table_cells(row) for row in part("thg.enable on the shipped models emoji").splitlines() if "| thg " in row]
    faster, of_ideal = ([row[column].rstrip("x") for row in emoji] for column in (5, 6))
    assert f"{min(faster)} to {max(faster)} times as fast" in models
    assert f"{min(of_ideal)} to {max(of_ideal)} of what the evaluations say" in models


def table_cells(row: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in row.split("|")[1:-1]]


def test_policies_and_metrics_are_all_told_of():
    text = (ROOT / "docs" / "benchmark.md").read_text()
    assert not [name for name in (*methods(), *metric_names()) if f"`{name}`" not in text]


# -- the code in it


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What the blocks of the pages take for granted: a pipeline, prompts, and a profile in the folder."""
    pipe = thg.shipped_pipeline()
    pipe.set_progress_bar_config(disable=True)
    folder = tmp_path_factory.mktemp("docs")
    thg.calibrate(pipe, ["a bag"], steps=12, guidance_scale=5.0, sensitivity=0, algorithm3=True, progress=False).save(
        folder / "mine.json"
    )
    return SimpleNamespace(pipe=pipe, folder=folder)


def test_a_page_that_is_one_program(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "own-model.md").read_text()
    blocks = [body for language, body in FENCE.findall(text) if language == "python"]
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"own-model.md, block {number}", "exec"), names)
    shown = capsys.readouterr().out
    assert shown.count("network evaluations instead of") == 3
    fewer, best = (float(found) for found in re.findall(r"relative difference: ([\d.]+)%", shown))
    assert max(fewer, best) < 2
    assert (tmp_path / "own.png").stat().st_size > 10_000
    table = dict.fromkeys(re.findall(r"`(thg\.Schedule\.\w+\(.*?\))`", text))
    assert len(table) > 8
    given = {"thg": thg, "steps": 10, "betas": np.linspace(1e-4, 0.02, 1000)}
    assert all(eval(code, given).steps == 10 for code in table if "steps" in code)


@each_page
def test_code_compiles_and_runs(page, prepared, monkeypatch):
    if page.name in ("own-model.md", "api.md"):
        return  # one program: above; signatures
    monkeypatch.chdir(prepared.folder)
    for number, (_, block) in enumerate(found for found in FENCE.findall(page.read_text()) if found[0] == "python"):
        where = f"{page.name}, block {number}"
        if block.startswith("--8<--"):
            continue  # a file of examples/, which is run as it is
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, {"thg": thg}, where, None, 0)
            assert doctest.DocTestRunner().run(test).failed == 0
            continue
        code = compile(block, where, "exec")
        if not re.search(r"from_pretrained\(\"|httpx|calibrate\(|update_components", block):  # need more than is here
            with thg.enabled(prepared.pipe):
                exec(code, {"thg": thg, "pipe": prepared.pipe})
            thg.disable(prepared.pipe)


# -- the notebook


def outputs_of(notebook) -> list:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def pictures_in(notebook) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs_of(notebook))


def execute_notebook(path: Path) -> int:
    """Runs the cells with few steps, in IPython as a kernel does; the exit code is the number of pictures shown."""
    import matplotlib
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    matplotlib.use("module://matplotlib_inline.backend_inline")
    shell, pictures = InteractiveShell.instance(), 0
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            few = cell.source.startswith("STEPS = 50")
            with capture_output() as shown:
                result = shell.run_cell("STEPS, SHARES, SMALL = 6, (0.7,), (0.5,)" if few else cell.source)
            result.raise_error()
            pictures += sum("image/png" in output.data for output in shown.outputs)
    return pictures


def test_notebook_runs_with_few_steps(tmp_path):
    assert "STEPS = 50" in NOTEBOOK.read_text()
    process = forked.start(tmp_path, execute_notebook, NOTEBOOK)
    assert forked.finish(process) == PICTURES, (tmp_path / "err.txt").read_text()


def test_notebook_is_small_and_has_its_pictures():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert NOTEBOOK.stat().st_size < 600_000
    assert pictures_in(notebook) == PICTURES
    assert not [o for o in outputs_of(notebook) if o.output_type == "error" or o.get("name") == "stderr"]
