"""Leaps of the whole network with caches inside it: the real packages on tiny pipelines."""

from __future__ import annotations

import pytest
import torch

import thg
from tests.adapter.families import Broken, Rows
from tests.adapter.programs import CACHES, STEPS

HALF = thg.tapered(0.5)


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_acts_on_the_evaluated_steps(name):
    make, cache = CACHES[name]
    case = make()
    with cache(case):
        alone = case.run(steps=STEPS)
        thg.enable(case.pipe, HALF)
        together = case.run(steps=STEPS)
        summary = thg.summary(case.pipe)
        assert torch.isfinite(together).all()
        assert summary.evaluations.count(0) == STEPS // 2
        assert name.split(",")[0].replace("TaylorSeerCache", "TaylorSeer") in summary.caches
        assert torch.equal(case.run(steps=STEPS), together), "nothing is left in the cache"
        with Rows(case, stop_at=3), pytest.raises(Broken):
            case.run(steps=STEPS)
        assert torch.equal(case.run(steps=STEPS), together)
        thg.disable(case.pipe)
        assert torch.equal(case.run(steps=STEPS), alone)
