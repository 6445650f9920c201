"""Checkpoints of trainings, from which they go on bit for bit.

A directory holds a folder per static group of grid points, and in it the newest few
checkpoints, each a folder named by its number of finished rounds (see `files`).
"""

from fedjax_pfl.results.checkpoint.files import Own, Progress, fingerprint
from fedjax_pfl.results.checkpoint.store import Checkpoints, Store, kept

__all__ = ["Checkpoints", "Own", "Progress", "Store", "fingerprint", "kept"]
