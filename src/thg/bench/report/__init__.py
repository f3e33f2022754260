"""The report of a run: its table and pictures."""

from thg.bench.report.writing import rebuild_report, write_report

__all__ = ["rebuild_report", "write_report"]
