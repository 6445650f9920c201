"""Trainings with clients' states in a file, not on the device."""

from fedjax_pfl.engine.streaming.row_store import RowStore
from fedjax_pfl.engine.streaming.simulate import (
    EVAL_CLIENTS,
    simulate_streamed,
)
from fedjax_pfl.engine.streaming.trainer import Streamed

__all__ = ["EVAL_CLIENTS", "RowStore", "Streamed", "simulate_streamed"]
