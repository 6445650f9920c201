"""Named experiments; every number of a preset can be changed by `--set`."""

from collections.abc import Callable

import fedjax_pfl as fp
from experiments import config
from fedjax_pfl import checks

__all__ = ["PRESETS", "get"]


def digits() -> config.Experiment:
    """The main job: FLAME below, at and above kappa = 1, FedAvg and Local on digits."""
    spec = fp.FederationSpec("digits", fp.DirichletLabels(concentration=0.5))
    model = fp.MLP(widths=(64,))
    sgd = fp.SGD(learning_rate=0.1, epochs=1, batch_size=20)
    flame = fp.Flame(lam=1.0, kappa=1.0, local=sgd)
    axes = {"algorithm.lam": (0.1, 1.0, 10.0), "algorithm.kappa": (0.5, 1.0, 2.0)}
    others = (fp.FedAvg(local=sgd), fp.Local(local=sgd))
    return config.Experiment(
        name="digits",
        grids=(
            config.Grid(fp.FederatedProcess(algorithm=flame), model, spec, axes),
            *(
                config.Grid(fp.FederatedProcess(algorithm=algorithm), model, spec)
                for algorithm in others
            ),
        ),
        num_rounds=50,
        seeds=(0, 1, 2),
        eval_every=5,
    )


def flame_mnist() -> config.Experiment:
    """The row Dir(0.5), MNIST of FLAME's table: ten clients, five seeds, 100 rounds."""
    sgd = fp.SGD(learning_rate=0.01, epochs=1, batch_size=100)
    flame = fp.Flame(lam=1.0, kappa=1.0, local=sgd)
    spec = fp.FederationSpec(
        "mnist", fp.DirichletLabels(concentration=0.5), num_clients=10
    )
    process = fp.FederatedProcess(algorithm=flame)
    return config.Experiment(
        name="flame_mnist",
        grids=(config.Grid(process, fp.MLP(widths=(128, 64)), spec),),
        num_rounds=100,
        seeds=(1, 10, 100, 1000, 10000),
        eval_every=10,
    )


def quadratic() -> config.Experiment:
    """Four quadratics with known minimizers; finished in seconds."""
    solver = fp.ToTolerance(learning_rate=0.5, tolerance=1e-10)
    flame = fp.Flame(lam=1.0, kappa=2.0, local=solver, eps_decay=0.0)
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=4)
    process = fp.FederatedProcess(algorithm=flame)
    return config.Experiment(
        name="quadratic",
        grids=(config.Grid(process, fp.Quadratic(), spec),),
        num_rounds=20,
    )


PRESETS: dict[str, Callable[[], config.Experiment]] = {
    "digits": digits,
    "flame_mnist": flame_mnist,
    "quadratic": quadratic,
}


def get(name: str) -> config.Experiment:
    """Returns the experiment of a preset's name."""
    checks.known(name, PRESETS, "preset")
    return PRESETS[name]()
