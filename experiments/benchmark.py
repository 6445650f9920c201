"""The benchmark of all methods: `python -m experiments.benchmark`."""

from experiments import presets  # noqa: F401 (adds presets of the papers)
from fedjax_pfl.command import application

app = application.alone("benchmark")

if __name__ == "__main__":
    app()
