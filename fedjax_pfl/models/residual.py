"""A residual network without normalization layers."""

import dataclasses
from types import ModuleType
from typing import Any

from fedjax_pfl.core import struct
from fedjax_pfl.models import base

__all__ = ["NFResNet18"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NFResNet18(base.ImageNetwork):
    """FedPG's normalizer-free ResNet: 189,844 parameters on 3 channels, 100 classes.

    Weight-standardized convolutions without biases: a 3x3 stem with 64 filters, ReLU,
    a 3x3 pool of stride 2, three stages of two pre-activation blocks with 16, 32 and 64
    filters, global average pool, `head`. Leaves `stem/...` and
    `stage_<i>_block_<j>/{conv_0,conv_1,shortcut}/{kernel,gain}`. Standardization takes
    the scale of the convolutions' weights away; they start normal with variance
    1/fan_in, and `initialization` is the head's.

    Attributes:
      residual_scale: factor of the branch added to the input; 0 leaves the input.
    """

    residual_scale: float = struct.traced_field(default=0.2)

    def _module(self, modules: ModuleType, classes: int) -> Any:
        return modules.ResNet(classes, self.initialization, self.residual_scale)
