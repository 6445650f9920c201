"""Times the workloads that the design is judged by: `python -m experiments.bench`."""
