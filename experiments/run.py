"""One training: `python -m experiments.run`."""

from experiments import presets  # noqa: F401 (adds presets of the papers)
from fedjax_pfl.command import application

app = application.alone("run")

if __name__ == "__main__":
    app()
