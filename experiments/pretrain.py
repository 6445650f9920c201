"""A network pretrained on users held out: `python -m experiments.pretrain`."""

from experiments import presets  # noqa: F401 (adds presets of the papers)
from fedjax_pfl.command import application

app = application.alone("pretrain")

if __name__ == "__main__":
    app()
