"""The main job, a sweep: `python -m experiments.sweep`."""

from experiments import presets  # noqa: F401 (adds those of the papers)
from fedjax_pfl.command import cli

app = cli.make_app(
    "sweep",
    "Trains all settings of a preset side by side and writes one result directory. "
    "Without options: FLAME with kappa below, at and above 1, FedAvg and Local on the "
    "digits of scikit-learn.",
)

if __name__ == "__main__":
    app()
