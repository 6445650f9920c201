"""Directions in which every client's loss falls, and how far to walk along them.

The mathematics of FedPG without its communication: all of it works on the rows that a
server holds (gradients of the cohort, of absent clients, and of the fairness objective)
and mostly on their Gram matrix. Usable on any pytrees with a leading axis.
"""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.algorithms.common_descent.angle import Fairness, fairness
    from fedjax_pfl.algorithms.common_descent.direction import Direction, common_descent
    from fedjax_pfl.algorithms.common_descent.history import absent
    from fedjax_pfl.algorithms.common_descent.protection import protected_moves
    from fedjax_pfl.algorithms.common_descent.rows import Rows, layer_names, make_rows
    from fedjax_pfl.algorithms.common_descent.search import Armijo, Searched
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "Armijo",
    "Direction",
    "Fairness",
    "Rows",
    "Searched",
    "absent",
    "common_descent",
    "fairness",
    "layer_names",
    "make_rows",
    "protected_moves",
]
