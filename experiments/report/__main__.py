"""A page about results: `python -m experiments.report`."""

from experiments.report import command

if __name__ == "__main__":
    command.app()
