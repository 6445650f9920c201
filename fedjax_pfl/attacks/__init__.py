"""Attacks: messages that malicious clients send instead of their own."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.attacks.alie import ALIE as ALIE
    from fedjax_pfl.attacks.gaussian import Gaussian as Gaussian
    from fedjax_pfl.attacks.ipm import IPM as IPM
    from fedjax_pfl.attacks.mimic import Mimic as Mimic
    from fedjax_pfl.attacks.min_max import MinMax as MinMax
    from fedjax_pfl.attacks.min_sum import MinSum as MinSum
    from fedjax_pfl.attacks.same_value import SameValue as SameValue
    from fedjax_pfl.attacks.scaling import Scaling as Scaling
    from fedjax_pfl.attacks.sign_flip import SignFlip as SignFlip
else:
    __getattr__, __dir__ = lazy.attach(__name__)
