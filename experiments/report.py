"""A page about results: `python -m experiments.report`."""

from fedjax_pfl.command import application

app = application.alone("report")

if __name__ == "__main__":
    app()
