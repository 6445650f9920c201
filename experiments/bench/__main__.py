"""Times the workloads: `python -m experiments.bench`."""

from experiments.bench import command

if __name__ == "__main__":
    command.app(prog_name="python -m experiments.bench")
