"""Models: what is trained."""

from fedjax_pfl.models.linear import LinearRegression, LogisticRegression, Quadratic
from fedjax_pfl.models.networks import MLP

__all__ = ["MODELS", "MLP", "LinearRegression", "LogisticRegression", "Quadratic"]

MODELS = {
    "linear_regression": LinearRegression,
    "logistic_regression": LogisticRegression,
    "mlp": MLP,
    "quadratic": Quadratic,
}
