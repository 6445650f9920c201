"""Models: what is trained."""

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
from fedjax_pfl.models.policies import EIIE
from fedjax_pfl.models.recurrent import LSTM
from fedjax_pfl.models.residual import NFResNet18

__all__ = [
    "CNN",
    "CNN1",
    "CNN2",
    "EIIE",
    "LSTM",
    "MLP",
    "MODELS",
    "CifarCNN",
    "EarlyExit",
    "FedAcsCNN",
    "LeNet5",
    "LinearRegression",
    "LogisticRegression",
    "NFResNet18",
    "Quadratic",
]

MODELS = {
    "cifar_cnn": CifarCNN,
    "cnn": CNN,
    "cnn1": CNN1,
    "cnn2": CNN2,
    "eiie": EIIE,
    "fedacs_cnn": FedAcsCNN,
    "lenet5": LeNet5,
    "linear_regression": LinearRegression,
    "logistic_regression": LogisticRegression,
    "lstm": LSTM,
    "mlp": MLP,
    "nf_resnet18": NFResNet18,
    "quadratic": Quadratic,
}
