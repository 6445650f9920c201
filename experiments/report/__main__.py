"""A page about results: `python -m experiments.report`."""

from experiments import report

if __name__ == "__main__":
    report.app()
