"""Three examples of every command, for the start of its help."""

from fedjax_pfl.command.completion import FETCHED

__all__ = ["EXAMPLES"]

_TABLE = "--data my.csv --label y --client user"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "fedjax-pfl": ("sweep", f"sweep {_TABLE} --out mine", "report mine"),
    "run": (
        "--algorithm ditto --set algorithm.lam=0.3",
        "--preset mnist --seeds 5 --save-models last --out ditto",
        "--resume ditto",
    ),
    "sweep": (
        "--algorithm flame,ditto --set algorithm.lam=0.1,1,10",
        f"{_TABLE} --seeds 5 --out mine",
        "--algorithm fedavg,my_file:MyMethod --tune 27",
    ),
    "plan": (
        "--preset cifar10",
        "--preset femnist --memory-limit 8GB",
        "--as-if-clients 100000",
    ),
    "benchmark": (
        "--only flame,ditto,fedavg",
        "--preset 'benchmark_f*' --out ranking --max-minutes 60",
        "--algorithm +my_file:MyMethod",
    ),
    "pretrain": (
        "--dataset femnist --out start.safetensors",
        f"{_TABLE} --out start.safetensors",
        "--preset digits --dataset synthetic --out start.safetensors",
    ),
    "report": ("mine", "mine --metric macro_f1", "first second --out both"),
    "methods": ("", "flame", "ditto"),
    "data": (
        "list",
        "show --dataset digits --partition label_shards",
        "check --data-dir files",
    ),
    "show": (
        "--dataset digits --partition label_shards --out partition.png",
        f"{_TABLE} --rows 50",
        "--dataset mnist --clients 10 --set federation.partition.concentration=0.1",
    ),
    "list": ("",),
    "check": ("", "--data-dir files"),
    "fetch": tuple(f"{name} --data-dir files" for name in FETCHED),
}
"""Arguments by the name of the command."""
