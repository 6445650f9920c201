"""Networks of dense layers."""

import dataclasses
from typing import Any

from fedjax_pfl.core import checks
from fedjax_pfl.models import base

__all__ = ["MLP"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(base.NormedNetwork):
    """Multilayer perceptron with ReLU; 784-128-64-10 has 109,386 parameters.

    Layers `hidden_<i>` (the body) and `head`. With `widths=(200, 200)` 199,210.

    Attributes:
      widths: hidden widths, each at least 1.
    """

    widths: tuple[int, ...] = (128, 64)

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.widths, tuple):
            raise checks.InputError(
                f"Expected widths to be a tuple of whole numbers, got {self.widths!r}."
            )
        for width in self.widths:
            checks.positive_int("widths", width)

    def _module(self, modules: Any, classes: int) -> Any:
        return modules.DenseNet(
            self.widths, classes, self.initialization, self.normalization
        )
