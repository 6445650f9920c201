"""Accuracy with products of bfloat16: `python -m experiments.bench.rounding`."""

from collections.abc import Iterator
from typing import Annotated, Any

import jax
import typer

import fedjax_pfl as fp
from experiments import commands
from fedjax_pfl.command import printing
from fedjax_pfl.results import paired, summaries

__all__ = ["app", "rows"]

_SGD = fp.SGD(learning_rate=0.1, epochs=2, batch_size=10)
METHODS = (fp.Flame(lam=1.0, kappa=1.0, local=_SGD), fp.FedAvg(local=_SGD))
MODELS = (fp.LogisticRegression(), fp.MLP(widths=(64,)))
SPEC = fp.FederationSpec("digits", fp.LabelShards(labels_per_client=4), num_clients=60)
_TITLES = ("network", "model", "metric", "float32", "bfloat16", "difference")


def rows(algorithm: Any, model: Any, rounds: int, seeds: int) -> Iterator[list[str]]:
    """Yields accuracy and loss of each model of a method, with both products."""
    axes = {"model.bfloat16_products": (False, True), "seed": range(seeds)}
    process = fp.FederatedProcess(algorithm=algorithm)
    result = fp.grid(
        jax.random.key(0),
        process,
        model,
        SPEC,
        axes,
        num_rounds=rounds,
        eval_every=rounds,
    )
    query = "when == 'last' and data == 'own test' and stat == 'mean'"
    query += " and model in ['global', 'personal'] and metric in ['accuracy', 'loss']"
    table: Any = result.table().query(query)
    for (model_name, metric), cells in table.groupby(["model", "metric"], sort=False):
        values = cells.pivot(
            index="seed", columns="model.bfloat16_products", values="value"
        )
        # Both products have the same seeds: differences are paired.
        full, rounded = values[False], values[True]
        yield [
            type(model).__name__,
            f"{type(algorithm).__name__}, {model_name}",
            metric,
            summaries.mean_and_std(full),
            summaries.mean_and_std(rounded),
            paired.interval(rounded, full).text("+.5f"),
        ]


@commands.application("Compares products of bfloat16 with full ones on digits.")
def app(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each training.")] = 100,
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of each training.")] = 5,
) -> None:
    """Prints the table."""
    cells = [
        row
        for model in MODELS
        for algorithm in METHODS
        for row in rows(algorithm, model, rounds, seeds)
    ]
    printing.table(printing.console(), _TITLES, cells, numbers=_TITLES[3:])


if __name__ == "__main__":
    app()
