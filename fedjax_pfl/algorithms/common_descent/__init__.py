"""Directions in which every client's loss falls, and how far to walk along them.

The mathematics of FedPG without its communication, for any rows `[J, *P]`.
"""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.algorithms.common_descent.angle import Fairness as Fairness
    from fedjax_pfl.algorithms.common_descent.angle import fairness as fairness
    from fedjax_pfl.algorithms.common_descent.direction import Direction as Direction
    from fedjax_pfl.algorithms.common_descent.direction import (
        common_descent as common_descent,
    )
    from fedjax_pfl.algorithms.common_descent.history import absent as absent
    from fedjax_pfl.algorithms.common_descent.protection import (
        protected_moves as protected_moves,
    )
    from fedjax_pfl.algorithms.common_descent.rows import Rows as Rows
    from fedjax_pfl.algorithms.common_descent.rows import layer_names as layer_names
    from fedjax_pfl.algorithms.common_descent.rows import make_rows as make_rows
    from fedjax_pfl.algorithms.common_descent.search import Armijo as Armijo
    from fedjax_pfl.algorithms.common_descent.search import Searched as Searched
else:
    __getattr__, __dir__ = lazy.attach(__name__)
