"""One training: `python -m experiments.run`."""

from experiments import presets  # noqa: F401 (adds those of the papers)
from fedjax_pfl.command import cli

app = cli.make_app("run")

if __name__ == "__main__":
    app()
