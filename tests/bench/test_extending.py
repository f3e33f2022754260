"""Methods and metrics of other packages: found by entry points, used in a configuration like thg's own."""

import sys

import pytest

pytest.importorskip("diffusers", reason="the benchmark needs diffusers")

from tests.bench.test_config import changed, parse
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
    assert config.methods[1].reference == "Evaluates some steps only"
    with pytest.raises(ConfigError, match="unknown key 'oder' in methods 2; did you mean 'order'"):
        parse(changed("methods.1", {**row, "oder": 1}))


@pytest.mark.usefixtures("installed")
def test_a_metric_of_another_package_is_measured():
    assert "brightness" in metric_names()
    assert parse(changed(metrics=["psnr", "brightness"])).metrics == ("psnr", "brightness")
    (metric,) = load_metrics(["brightness"]).metrics
    assert metric.name == "brightness"
