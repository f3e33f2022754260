"""Methods and metrics of other packages: found by entry points, used in a configuration like thg's own."""

import sys

import pytest

pytest.importorskip("diffusers", reason="the benchmark needs diffusers")

from tests.bench.runs import METHODS, config_in, quietly, report, run_in, save_model
from tests.bench.test_config import changed, parse
from thg.bench.config import parse_config
from thg.bench.methods import methods
from thg.bench.metrics import load_metrics, metric_names
from thg.bench.tables import ConfigError

MODULE = """
from dataclasses import dataclass
import torch
import thg
from thg.bench.metrics import MeanMetric
from thg.plans.guide import HareGuide

@dataclass(frozen=True)
class Sparse:
    "Evaluates some steps only."
    nfe: int
    order: int = 1
    def guide(self, run):
        return HareGuide(thg.uniform(nfe=self.nfe, hare_order=self.order).plan(run), run)

class Brightness(MeanMetric):
    name = "brightness"
    direction = "higher"
    def score(self, batch):
        return batch.pictures().flatten(1).mean(1)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with a method and a metric, as pip installs it."""
    (tmp_path / "foreign_methods.py").write_text(MODULE)
    info = tmp_path / "foreign_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-methods\nVersion: 1.0\n")
    points = ["[thg.bench.methods]", "sparse = foreign_methods:Sparse", "[thg.bench.metrics]"]
    (info / "entry_points.txt").write_text("\n".join([*points, "brightness = foreign_methods:Brightness", ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    methods.cache_clear()
    yield
    methods.cache_clear()
    sys.modules.pop("foreign_methods", None)


@pytest.mark.usefixtures("installed")
def test_a_method_of_another_package_has_its_options_and_its_budget():
    row = {"name": "mine", "policy": "sparse", "nfe": 13, "order": 2}
    config = parse(changed("methods.1", row))
    assert config.methods[1].options == {"nfe": 13, "order": 2}
    assert config.methods[1].nfe == 13
    assert config.methods[1].citation == "Evaluates some steps only"
    with pytest.raises(ConfigError, match="unknown key 'oder' in methods 2; did you mean 'order'"):
        parse(changed("methods.1", {**row, "oder": 1}))


def test_a_method_and_a_metric_in_a_file_need_no_package(tmp_path):
    save_model(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    row = {"name": "mine", "policy": "mine.py:Sparse", "nfe": 9}
    config = config_in(tmp_path, count=2, methods=[METHODS[0], row], metrics=["psnr", "mine.py:Brightness"])
    quietly(config, tmp_path / "run")
    table = report(config, tmp_path / "run")
    cells = next(line for line in table.splitlines() if line.startswith("| mine |")).split("|")
    assert cells[2].strip() == "9"
    assert 0 < float(cells[-2].strip(" *")) < 1
    before = run_in(config, tmp_path / "run").series()["mine"].key
    (tmp_path / "other.py").write_text(MODULE.replace("hare_order=self.order", "hare_order=2"))
    again = config_in(tmp_path, count=2, methods=[METHODS[0], {**row, "policy": "other.py:Sparse"}])
    assert run_in(again, tmp_path / "run").series()["mine"].key != before  # the file is part of the address


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("fadin", 'your own: policy = "my_methods.py:MyMethod", a dataclass with guide'),
        ("absent.py:Sparse", "there is no file .*absent.py"),
        ("mine.py:Spars", "has no 'Spars'; it has the classes .*Sparse"),
        ("mine.py:Brightness", "is not a dataclass"),
        ("broken.py:Sparse", "cannot be imported .SyntaxError"),
    ],
)
def test_the_error_of_an_unknown_method_says_how_to_write_ones_own(tmp_path, policy, says):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("class")
    with pytest.raises(ConfigError, match=says):
        parse_config(changed("methods.1", {"name": "mine", "policy": policy, "nfe": 13}), tmp_path)


@pytest.mark.usefixtures("installed")
def test_a_metric_of_another_package_is_measured():
    assert "brightness" in metric_names()
    assert parse(changed(metrics=["psnr", "brightness"])).metrics == ("psnr", "brightness")
    (metric,) = load_metrics(["brightness"]).metrics
    assert metric.name == "brightness"
