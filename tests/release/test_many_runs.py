"""A hundred runs and more in one process: memory does not grow."""

import gc

import psutil
import pytest
import torch

import thg
from tests.pipelines.families import FAMILIES, Broken, Rows

RUNS = 100  # one object more per run would exceed the tolerance


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def resident() -> int:
    return psutil.Process().memory_info().rss


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DiT", "Wan 2.1"])  # one batched call a step, and two calls
def test_memory_does_not_grow(kind):
    case = FAMILIES[kind]()

    def run(number):
        """Other plans and step counts all the time, now and then a run that breaks off, or a pipeline let go."""
        thg.enable(case.pipe, thg.uniform(every=1 + number % 3, corrector=0.5 * (number % 2)))
        if number % 50 == 0:
            with pytest.raises(Broken), Rows(case, stop_at=2):
                case.run(steps=3)
        case.run(steps=2 + number % 2)
        thg.summary(case.pipe)
        if number % 7 == 0:
            thg.disable(case.pipe)

    def held_after(numbers):
        for number in [*numbers, 0]:  # the last run is the same each time, and let go
            run(number)
        return tensors(), objects(), resident()

    held_after(range(8))  # fills what is cached per configuration of a scheduler
    before = held_after(range(42))  # every combination of the periods in `run`
    after = held_after(range(RUNS))
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 50
    assert after[2] <= before[2] + 8 * 2**20
