"""Transforms of messages between clients and server: compression and privacy."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.messages.adaptive_clip import AdaptiveClip as AdaptiveClip
    from fedjax_pfl.messages.banded_noise import BandedNoise as BandedNoise
    from fedjax_pfl.messages.clip_norm import ClipNorm as ClipNorm
    from fedjax_pfl.messages.encoding import Encoding as Encoding
    from fedjax_pfl.messages.gaussian_noise import GaussianNoise as GaussianNoise
    from fedjax_pfl.messages.low_rank import LowRank as LowRank
    from fedjax_pfl.messages.qsgd import QSGD as QSGD
    from fedjax_pfl.messages.random_k import RandomK as RandomK
    from fedjax_pfl.messages.server_noise import NoisyRound as NoisyRound
    from fedjax_pfl.messages.server_noise import ServerNoise as ServerNoise
    from fedjax_pfl.messages.sign_scale import SignScale as SignScale
    from fedjax_pfl.messages.top_k import TopK as TopK
    from fedjax_pfl.messages.tree_noise import TreeNoise as TreeNoise
else:
    __getattr__, __dir__ = lazy.attach(__name__)
