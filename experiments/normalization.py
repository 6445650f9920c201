"""FedBN on digits in different light: `python -m experiments.normalization`.

FedBN: Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021.
"""

from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pandas as pd
import typer

import fedjax_pfl as fp
from experiments import commands
from experiments.cards import markdown
from fedjax_pfl.results import paired, plain_files

__all__ = ["PAGE", "SCORES", "app", "lit", "page", "table"]

_HERE = Path(__file__).parent
SCORES = _HERE / "results" / "normalization.csv"
PAGE = _HERE.parent / "docs" / "normalization.md"
CLIENTS, ROUNDS, SEEDS = 20, 50, 5
_CONTRAST, _BRIGHTNESS = (0.3, 1.0), (-0.5, 0.5)  # drawn uniformly for every client
_MARKS = "<!-- scores -->\n", "<!-- end of scores -->\n"
_SOLVER = fp.SGD(learning_rate=0.1, epochs=2, batch_size=20)


def _network(kind: str | None) -> fp.MLP:
    return fp.MLP(widths=(64,), normalization=kind)


METHODS: dict[str, tuple[Any, Any, str]] = {  # algorithm, network, evaluated model
    "Local, batch norm": (fp.Local(local=_SOLVER), _network("batch"), "personal"),
    "FedAvg, no norm": (fp.FedAvg(local=_SOLVER), _network(None), "global"),
    "FedAvg, layer norm": (fp.FedAvg(local=_SOLVER), _network("layer"), "global"),
    "FedAvg, group norm": (fp.FedAvg(local=_SOLVER), _network("group"), "global"),
    "FedAvg, batch norm": (fp.FedAvg(local=_SOLVER), _network("batch"), "global"),
    "FedAvg, batch norm, local statistics": (
        fp.FedAvg(local=_SOLVER),
        fp.ParameterRoles(_network("batch"), local_statistics=True),
        "global",
    ),
    "FedBN": (
        fp.FedAvg(local=_SOLVER),
        fp.ParameterRoles(_network("batch"), personal="_norm/", local_statistics=True),
        "global",
    ),
}
_BASE = "FedAvg, batch norm"


def lit(seed: int) -> fp.Federation:
    """Returns digits `[8, 8]` with a contrast and a brightness per client."""
    digits = fp.data.Digits().load(data_dir=None, seed=0, num_clients=None)
    rng = np.random.default_rng(seed)
    owner = rng.permutation(len(digits.y)) % CLIENTS
    contrast, brightness = (
        rng.uniform(*bounds, CLIENTS)[owner, None, None].astype(np.float32)
        for bounds in (_CONTRAST, _BRIGHTNESS)
    )
    x = digits.x.astype(np.float32) / 16
    # Odd clients have negatives.
    x = np.where((owner % 2 == 1)[:, None, None], 1 - x, x)
    return fp.Federation.from_arrays(brightness + contrast * x, digits.y, owner)


def _scores() -> pd.DataFrame:
    """Trains every method with every seed; a row per training."""
    rows = []
    for seed in range(SEEDS):
        federation = lit(seed)
        for name, (algorithm, model, model_name) in METHODS.items():
            result = fp.simulate(
                jax.random.key(seed),
                fp.FederatedProcess(algorithm=algorithm),
                model,
                federation,
                num_rounds=ROUNDS,
                eval_every=ROUNDS,
                progress=False,
            )
            group = result.groups[0]
            place = (0, -1, group.models.index(model_name), group.data.index("test"))
            values = np.sort(group.metrics["accuracy"][place])
            worst = values[: len(values) // 10].mean()
            rows.append((name, seed, values.mean(), worst))
            print(f"{name}, seed {seed}: {values.mean():.3f}", flush=True)
    return pd.DataFrame(rows, columns=["method", "seed", "accuracy", "worst"])


def table(scores: pd.DataFrame) -> str:
    """Returns Markdown: means over seeds, and differences to FedAvg by seed."""
    header = ("method", "accuracy", "worst tenth of clients", f"beside {_BASE}")
    lines = []
    percent = scores.assign(**{n: 100 * scores[n] for n in ("accuracy", "worst")})
    of = {name: part.set_index("seed") for name, part in percent.groupby("method")}
    for name in METHODS:
        gap = paired.interval(of[name]["accuracy"], of[_BASE]["accuracy"])
        cells = [
            name,
            f"{of[name]['accuracy'].mean():.1f} ± {of[name]['accuracy'].std():.1f}",
            f"{of[name]['worst'].mean():.1f}",
            "–" if name == _BASE else gap.text("+.1f"),
        ]
        lines.append(cells)
    return "\n".join(markdown.table(header, lines, 1)) + "\n"


def page(text: str, scores: pd.DataFrame) -> str:
    """Returns the page's text with the table of these scores."""
    head, rest = text.split(_MARKS[0])
    _, tail = rest.split(_MARKS[1])
    return f"{head}{_MARKS[0]}\n{table(scores)}\n{_MARKS[1]}{tail}"


@commands.application("Compares FedBN with FedAvg on digits in different light.")
def app(
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Table of the scores.")
    ] = SCORES,
) -> None:
    """Writes the scores; in the default file they also go into the page."""
    scores = _scores()
    scores.to_csv(out, index=False, float_format="%.6g")
    print(table(scores))
    if out == SCORES:
        text = page(PAGE.read_text("utf-8"), pd.read_csv(out))
        plain_files.write_text(PAGE, text)


if __name__ == "__main__":
    app()
