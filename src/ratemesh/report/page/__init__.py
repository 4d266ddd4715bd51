"""The report: one HTML file that needs nothing else."""

from ratemesh.report.page.write import Written, write_report

__all__ = ["Written", "write_report"]
