"""Models: what is trained."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.models.convolutional import (
        CNN,
        CNN1,
        CNN2,
        CifarCNN,
        FedAcsCNN,
        LeNet5,
    )
    from fedjax_pfl.models.exits import EarlyExit
    from fedjax_pfl.models.linear import LinearRegression, LogisticRegression, Quadratic
    from fedjax_pfl.models.networks import MLP
    from fedjax_pfl.models.recurrent import LSTM
    from fedjax_pfl.models.residual import NFResNet18
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "CNN",
    "CNN1",
    "CNN2",
    "LSTM",
    "MLP",
    "CifarCNN",
    "EarlyExit",
    "FedAcsCNN",
    "LeNet5",
    "LinearRegression",
    "LogisticRegression",
    "NFResNet18",
    "Quadratic",
]
