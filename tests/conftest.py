"""Settings that all tests share, and a summary of the tests that could not run on this machine."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections import Counter

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("thg", deadline=None, max_examples=60)
settings.load_profile("thg")

os.environ["THG_CACHE"] = tempfile.mkdtemp(prefix="thg-tests-")  # no test leaves a result of tune outside
os.environ["THG_TUNED"] = "0"  # and none finds that of another test
atexit.register(shutil.rmtree, os.environ["THG_CACHE"], ignore_errors=True)


LONGEST = (  # files that take half a minute and more: they start first, so that no worker ends up with one alone
    *("pipelines/test_enable.py", "pipelines/test_families.py", "device/test_device.py", "test_docs.py"),
    *("test_examples.py", "pipelines/test_caches.py", "pipelines/test_leaping.py", "release/test_wheel.py"),
    *("bench/test_runner.py", "bench/test_stages.py", "models/test_training.py", "studio/test_page.py"),
    *("release/test_many_runs.py", "bench/test_scale.py", "pipelines/test_runs.py", "pipelines/test_own_pipelines.py"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Files are handed out to the workers of pytest-xdist in the order below, not by their number of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0].removeprefix("tests/"), len(order)))
    _prepare_bfloat16(items)


def _prepare_bfloat16(items: list[pytest.Item]) -> None:
    """Runs the tests of bfloat16 with fewer CPU instructions, or skips them, where the default ones crash."""
    computing = [item for item in items if _uses_bfloat16(item)]
    if not computing:
        return
    from thg.processes import SETTING, VALUE, VARIABLE, bfloat16_works

    if bfloat16_works():
        return
    if bfloat16_works(restricted=True):
        os.environ[VARIABLE] = VALUE  # oneDNN reads it at its first use, which is in a test
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
