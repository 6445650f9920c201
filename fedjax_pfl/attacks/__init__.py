"""What malicious clients send instead of their messages."""

from fedjax_pfl.attacks.gaussian import Gaussian
from fedjax_pfl.attacks.sign_flip import SignFlip

__all__ = ["ATTACKS", "Gaussian", "SignFlip"]

ATTACKS = {"sign_flip": SignFlip, "gaussian": Gaussian}
