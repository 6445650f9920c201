"""Data sets and partitions on the command line: `python -m experiments.data`."""

from fedjax_pfl.command.data_command import app

if __name__ == "__main__":
    app()
