"""Trainings whose clients' states are in a file, not on the device."""

from fedjax_pfl.streaming.rows import RowStore
from fedjax_pfl.streaming.simulate import simulate_streamed

__all__ = ["RowStore", "simulate_streamed"]
