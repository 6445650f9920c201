"""One training: `python -m experiments.run`."""

from experiments import presets  # noqa: F401 (adds those of the papers)
from fedjax_pfl.command import cli

app = cli.make_app(
    "run",
    "Trains one setting (several seeds if asked for) and writes a result directory. "
    "Takes the first algorithm of the preset with its own settings.",
)

if __name__ == "__main__":
    app()
