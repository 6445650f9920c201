"""What malicious clients send instead of their messages."""

from typing import Any

from fedjax_pfl.attacks.alie import ALIE
from fedjax_pfl.attacks.gaussian import Gaussian
from fedjax_pfl.attacks.ipm import IPM
from fedjax_pfl.attacks.mimic import Mimic
from fedjax_pfl.attacks.min_max import MinMax
from fedjax_pfl.attacks.min_sum import MinSum
from fedjax_pfl.attacks.same_value import SameValue
from fedjax_pfl.attacks.scaling import Scaling
from fedjax_pfl.attacks.sign_flip import SignFlip

__all__ = [
    "ALIE",
    "ATTACKS",
    "Gaussian",
    "IPM",
    "Mimic",
    "MinMax",
    "MinSum",
    "SameValue",
    "Scaling",
    "SignFlip",
]

ATTACKS: dict[str, Any] = {
    "sign_flip": SignFlip,
    "gaussian": Gaussian,
    "same_value": SameValue,
    "scaling": Scaling,
    "ipm": IPM,
    "alie": ALIE,
    "min_max": MinMax,
    "min_sum": MinSum,
    "mimic": Mimic,
}
