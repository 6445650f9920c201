"""One page about results, with their figures and tables: `experiments.report`."""

from experiments.report.command import app

__all__ = ["app"]
