"""Attacks: messages that malicious clients send instead of their own."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.attacks.alie import ALIE
    from fedjax_pfl.attacks.gaussian import Gaussian
    from fedjax_pfl.attacks.ipm import IPM
    from fedjax_pfl.attacks.mimic import Mimic
    from fedjax_pfl.attacks.min_max import MinMax
    from fedjax_pfl.attacks.min_sum import MinSum
    from fedjax_pfl.attacks.same_value import SameValue
    from fedjax_pfl.attacks.scaling import Scaling
    from fedjax_pfl.attacks.sign_flip import SignFlip
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "ALIE",
    "Gaussian",
    "IPM",
    "Mimic",
    "MinMax",
    "MinSum",
    "SameValue",
    "Scaling",
    "SignFlip",
]
