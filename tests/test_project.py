"""What others need to join: workflows, forms, hooks and releases that fit the repository."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")

ROOT = Path(__file__).parents[1]
HOST = ROOT / ".github"
pytestmark = pytest.mark.skipif(not HOST.is_dir(), reason="the source distribution has no .github")


def release():
    spec = importlib.util.spec_from_file_location("release", HOST / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_workflows_run_what_there_is():
    targets = set(re.findall(r"^([\w-]+)%?:", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = {path.stem: commands(path) for path in sorted((HOST / "workflows").glob("*.yml"))}
    assert {"docs", "release", "tests"} <= set(found)
    made = [words for lines in found.values() for line in lines for words in re.findall(r"\bmake ([\w-]+)", line)]
    assert set(made) <= targets
    assert {"test", "test-minimum", "test-comfyui", "docs"} <= set(made)
    scripts = [path for lines in found.values() for line in lines for path in re.findall(r"\S+\.py", line)]
    assert scripts
    assert all((ROOT / path).is_file() for path in scripts)


def test_issue_forms_are_complete():
    for path in sorted((HOST / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text())
        if path.stem == "config":
            continue
        assert {"name", "description", "body"} <= form.keys()
        names = [field["id"] for field in form["body"]]
        assert len(names) == len(set(names))
        assert all(field["attributes"]["label"] for field in form["body"])


def test_hooks_run_what_make_lint_runs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    wanted = [line.strip().replace("$(BIN)", ".venv/bin") for line in lint.splitlines()]
    assert [hook["entry"] for hook in hooks] == wanted


def test_on_the_package_index_no_link_is_relative():
    home = "https://host.example/owner/thg"
    text = release().absolute((ROOT / "README.md").read_text(), home, "v1.2.3")
    targets = [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r'src="([^"]+)"', text)]
    assert f"{home}/raw/v1.2.3/docs/frontier.png" in targets
    assert all(target.startswith(("https://", "#")) for target in targets)
    assert f"({home}/raw/v1.2.3/docs/demo.png)" in release().absolute("![a](docs/demo.png)", home, "v1.2.3")
    shown = release().by_name((ROOT / "README.md").read_text())
    assert '`pip install "tortoise-hare-guidance[diffusers]"`, then' in shown
    assert '".[' not in shown
    urls = tomllib.loads(release().with_addresses((ROOT / "pyproject.toml").read_text(), home))["project"]["urls"]
    assert urls["Issues"] == f"{home}/issues"
    assert urls["Paper"].startswith("https://arxiv.org/abs/")


def test_on_the_manuals_site_no_link_leads_out_of_it():
    pages = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    assert any("](../benchmarks/RESULTS.md" in text for text in pages)
    shown = "\n".join(release().outside(text, "https://host.example/owner/thg", "main") for text in pages)
    assert "](https://host.example/owner/thg/blob/main/README.md#what-it-saves)" in shown
    assert "](.." not in shown


def test_a_tag_that_is_not_the_version_is_refused():
    done = subprocess.run([sys.executable, HOST / "release.py", "check", "v0.0.0"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "the tag is v0.0.0, and the version in src/thg/distribution.py is" in done.stderr


def test_the_changelog_is_short():
    """Each version in at most eighty lines; details are in the long list behind it."""
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    lengths = {text.split()[0]: len(text.strip().splitlines()) for text in versions}
    assert [version for version, lines in lengths.items() if lines > 80] == []
    assert "0.2.0" in lengths
