"""Metrics that run in a package of their own on the files of samples, in this Python or in another one."""

from __future__ import annotations

import json
import math
import subprocess
import sys

from thg.bench.metrics import package_scripts
from thg.bench.metrics.base import MetricError, Scored
from thg.bench.metrics.package_scripts import SCRIPTS, Job
from thg.errors import MissingExtraError


class PackageMetric(Scored):
    """One of `SCRIPTS`. python: the interpreter in whose environment the package is installed."""

    def __init__(self, name: str, python: str = sys.executable) -> None:
        script = SCRIPTS[name]
        self.name, self.python = name, python
        self.direction, self.hears = script.direction, script.hears
        self.needs = frozenset({script.need})

    def values(self, job: Job) -> list[float]:
        """One number per sample, or one for the set."""
        done = self._run([self.name], json.dumps(job))
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            reason = next((line for line in reversed(lines) if "Error:" in line), lines[-1])
            raise MetricError(f"{self.name} failed in {self.python}: {reason.strip()[:300]}")
        values: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
        if not all(map(math.isfinite, values)):
            raise MetricError(f"{self.name} in {self.python} gave NaN or infinity")
        return values

    def require(self) -> PackageMetric:
        """Itself, or the error that says how to install the package."""
        if self._run([self.name, "--check"]).returncode:
            package = SCRIPTS[self.name].package
            raise MissingExtraError(
                f"it needs the package {package}: {self.python} -m pip install {package}. If that conflicts "
                f"with other packages, install it in another environment and write its Python into the configuration: "
                f'[packages] {self.name} = "/path/to/bin/python"'
            )
        return self

    def _run(self, words: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
        try:
            command = [self.python, package_scripts.__file__, *words]
            return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        except OSError as error:
            raise MissingExtraError(
                f"cannot run {self.python} for {self.name} ({error.strerror}); [packages] names the Python in whose "
                "environment the package is installed"
            ) from None
