"""Which process this is among those of a launcher, and which device is its own."""

import pytest
import torch

from thg.processes import Process, best_device, choose_device

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def launched(monkeypatch, *values):
    for name, value in zip(NUMBERS, values, strict=True):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("values", "process"),
    [
        ((None, None, None), Process()),
        (("5", "8", "1"), Process(5, 8, 1)),  # the second process of the second machine
        (("5", "8", None), Process(5, 8, 5)),
        (("", "", ""), Process()),
        (("first", "8", "1"), Process()),
    ],
)
def test_the_numbers_of_the_launcher(monkeypatch, values, process):
    launched(monkeypatch, *values)
    assert Process.current() == process


@pytest.mark.parametrize(
    ("process", "gpus", "mps", "device"),
    [
        (Process(), 1, False, "cuda"),
        (Process(), 8, True, "cuda"),
        (Process(5, 8, 1), 4, False, "cuda:1"),  # each process has a GPU of its own
        (Process(1, 2, 1), 1, False, "cuda:0"),  # or shares the only one
        (Process(), 0, True, "mps"),
        (Process(), 0, False, "cpu"),
        (Process(1, 2, 1), 0, False, "cpu"),
    ],
)
def test_the_best_device(process, gpus, mps, device):
    assert choose_device(process, gpus, mps) == device


def test_the_best_device_of_this_machine_computes(monkeypatch):
    launched(monkeypatch, None, None, None)
    device = torch.device(best_device())
    assert float(torch.ones(3, device=device).sum()) == 3
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert device.type == expected
