"""Settings that all tests share, and what a machine lacks: said at the end, not a failure."""

from __future__ import annotations

import os
from collections import Counter

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("thg", deadline=None, max_examples=60)
settings.load_profile("thg")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of bfloat16 run with fewer instructions, or not at all, where the CPU's own would stop the process."""
    computing = [item for item in items if _uses_bfloat16(item)]
    if not computing:
        return
    from thg.cli.bfloat16 import SETTING, VALUE, VARIABLE, bfloat16_works

    if bfloat16_works():
        return
    if bfloat16_works(SETTING):
        os.environ[VARIABLE] = VALUE  # read by oneDNN at its first use, which is in a test
        return
    for item in computing:
        item.add_marker(pytest.mark.skip(reason=f"bfloat16 stops the process on this CPU, also with {SETTING}"))


def _uses_bfloat16(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    return parameters is not None and any(str(value) == "torch.bfloat16" for value in parameters.params.values())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was left out on this machine, and why."""
    terminalreporter.section("left out")
    reasons = left_out(terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count:5d} tests: {reason}")
    if not reasons:
        terminalreporter.write_line("nothing: every test that was collected has run")


def left_out(reports: list[pytest.TestReport]) -> Counter[str]:
    """The reasons of skipped tests, and how many tests each has."""
    reasons = [report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in reports]
    return Counter(reason.removeprefix("Skipped: ") for reason in reasons)
