"""The client axis: rows, sums over rows, and the map in four executions."""

from fedjax_pfl.clients.mapping import (
    Execution,
    chunked,
    client_mesh,
    lane_max,
    map_chunks,
    map_clients,
    replicate,
    shard_rows,
)
from fedjax_pfl.clients.rows import (
    broadcast,
    finite_rows,
    gram,
    magnitude,
    mix,
    put,
    ravel_rows,
    select_rows,
    size,
    take,
    weighted_mean,
    weighted_sum,
)

__all__ = [
    "Execution",
    "broadcast",
    "chunked",
    "client_mesh",
    "finite_rows",
    "gram",
    "lane_max",
    "magnitude",
    "map_chunks",
    "map_clients",
    "mix",
    "put",
    "ravel_rows",
    "replicate",
    "select_rows",
    "shard_rows",
    "size",
    "take",
    "weighted_mean",
    "weighted_sum",
]
