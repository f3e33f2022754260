"""enable, run, break off, disable, other plans, steps and batches, in any order: always as on a fresh pipeline.

On a pipeline with one batched call a step (as in tests/pipelines, with more kinds of plans here), and on one with two.
"""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import thg
from tests.pipelines.families import FAMILIES, Broken, Rows

STEPS = st.integers(1, 5)
PLANNERS = st.builds(
    thg.uniform, every=st.integers(1, 3), hare_order=st.sampled_from([1, 2]), corrector=st.sampled_from([0.0, 0.7])
)


@st.composite
def plans(draw):
    """A plan for some number of steps, which the next run may not have."""
    steps = draw(STEPS)
    coarse = (0, *sorted(draw(st.sets(st.integers(1, steps - 1))) if steps > 1 else ()))
    return thg.Plan(steps, coarse, cutoff=draw(st.integers(1, steps)), boost=draw(st.sampled_from([1.0, 1.1])))


class Lifecycle(RuleBasedStateMachine):
    kind = ""

    def __init__(self):
        super().__init__()
        self.case = FAMILIES[self.kind]()
        self.plan = None
        self.samples = 1

    @rule(plan=st.one_of(PLANNERS, plans()))
    def enable(self, plan):
        self.plan = plan
        thg.enable(self.case.pipe, plan)

    @rule()
    @precondition(lambda self: self.plan is not None)
    def disable(self):
        self.plan = None
        thg.disable(self.case.pipe)

    @rule(samples=st.integers(1, 3))
    def change_batch(self, samples):
        self.samples = samples

    @rule(call=st.integers(1, 3))
    def raise_in_the_middle(self, call):
        steps = self.plan.steps if isinstance(self.plan, thg.Plan) else 3
        with Rows(self.case, stop_at=call):
            try:
                self.case.run(steps=steps)
            except Broken:
                return
        assert steps < 3  # it had ended before that call

    @rule(steps=STEPS, guided=st.booleans())
    def run(self, steps, guided):
        numbers = range(self.samples)
        arguments = {"prompts": numbers, "seeds": numbers, "steps": steps, "guided": guided}
        fresh = FAMILIES[self.kind]()
        if self.plan is None:
            assert torch.equal(self.case.run(**arguments), fresh.run(**arguments))
            return
        thg.enable(fresh.pipe, self.plan)
        if isinstance(self.plan, thg.Plan) and self.plan.steps != steps:
            for case in (self.case, fresh):
                with pytest.raises(thg.PlanError, match=f"for {self.plan.steps} steps"):
                    case.run(**arguments)
            return
        assert torch.equal(self.case.run(**arguments), fresh.run(**arguments))
        mine, theirs = thg.summary(self.case.pipe), thg.summary(fresh.pipe)
        assert (mine.nfe, mine.cfg_nfe, mine.plan, mine.note) == (theirs.nfe, theirs.cfg_nfe, theirs.plan, theirs.note)


def machine(family):
    """The state machine on a family, as a test case."""
    case = type(family, (Lifecycle,), {"kind": family}).TestCase
    case.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)
    return case


TestBatched = machine("SD 1.5")
TestTwoCalls = machine("Wan 2.1")
