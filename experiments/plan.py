"""Memory and time of a sweep before it is run: `python -m experiments.plan`."""

from experiments import presets  # noqa: F401 (adds presets of the papers)
from fedjax_pfl.command import application

app = application.alone("plan")

if __name__ == "__main__":
    app()
