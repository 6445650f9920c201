"""The main job, a sweep: `python -m experiments.sweep`."""

from experiments import presets  # noqa: F401 (adds presets of the papers)
from fedjax_pfl.command import application

app = application.alone("sweep")

if __name__ == "__main__":
    app()
