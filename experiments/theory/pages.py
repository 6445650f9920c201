"""Pages that compare simulations with theory: parts with rows and figures."""

from experiments.theory import common_descent, fedacs, fedplus, flame, portfolio, rows

__all__ = ["PAGES"]

PAGES: dict[str, tuple[rows.Part, ...]] = {
    "flame": flame.PARTS,
    "fedacs": fedacs.PARTS,
    "fedplus": fedplus.PARTS,
    "fedpg": common_descent.PARTS,
    "portfolio": portfolio.PARTS,
}
