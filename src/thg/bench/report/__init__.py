"""From the samples of a run to its table and its pictures."""

from thg.bench.report.writing import rebuild_report, write_report

__all__ = ["rebuild_report", "write_report"]
