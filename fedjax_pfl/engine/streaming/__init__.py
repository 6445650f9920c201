"""Trainings whose clients' states are in a file, not on the device."""

from fedjax_pfl.engine.streaming.row_store import RowStore
from fedjax_pfl.engine.streaming.simulate import (
    EVAL_CLIENTS,
    check,
    run,
    simulate_streamed,
)

__all__ = ["EVAL_CLIENTS", "RowStore", "check", "run", "simulate_streamed"]
