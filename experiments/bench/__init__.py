"""Times what the design is judged by: `python -m experiments.bench`."""
