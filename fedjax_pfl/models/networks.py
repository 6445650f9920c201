"""Networks of dense layers."""

import dataclasses
from types import ModuleType
from typing import Any

from fedjax_pfl.core import struct
from fedjax_pfl.models import base

__all__ = ["MLP"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(base.NormedNetwork):
    """Multilayer perceptron with ReLU; 784-128-64-10 has 109,386 parameters.

    Layers `hidden_<i>` (the body) and `head`. With `widths=(200, 200)` 199,210.

    Attributes:
      widths: hidden widths, each at least 1.
    """

    widths: tuple[int, ...] = struct.static_field(default=(128, 64), at_least=1)

    def _module(self, modules: ModuleType, classes: int) -> Any:
        return modules.DenseNet(
            self.widths, classes, self.initialization, self.normalization
        )
