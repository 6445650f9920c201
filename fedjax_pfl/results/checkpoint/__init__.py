"""Checkpoints of trainings, from which they go on bit for bit.

A directory holds one folder per static group of grid points, and in it the newest few
checkpoints, each a folder named by its number of finished rounds (see `files`). Each is
written under a temporary name and renamed at the end, so that a process killed at any
moment leaves intact checkpoints only.
"""

from fedjax_pfl.results.checkpoint.files import Own, Progress, fingerprint
from fedjax_pfl.results.checkpoint.store import Checkpoints, Store, kept

__all__ = ["Checkpoints", "Own", "Progress", "Store", "fingerprint", "kept"]
