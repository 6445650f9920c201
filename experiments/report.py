"""A page about results: `python -m experiments.report`."""

from fedjax_pfl.command.report_command import app

if __name__ == "__main__":
    app()
