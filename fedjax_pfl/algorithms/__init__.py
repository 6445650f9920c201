"""Algorithms: one file each, by command-line name in `ALGORITHMS`."""

from fedjax_pfl.algorithms.base import ClientView, Link, SingleExchange
from fedjax_pfl.algorithms.fedavg import Centralized, FedAvg, Local
from fedjax_pfl.algorithms.flame import Flame

__all__ = [
    "ALGORITHMS",
    "Centralized",
    "ClientView",
    "FedAvg",
    "Flame",
    "Link",
    "Local",
    "SingleExchange",
]

ALGORITHMS = {
    "centralized": Centralized,
    "fedavg": FedAvg,
    "flame": Flame,
    "local": Local,
}
