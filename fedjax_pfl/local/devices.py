"""Devices of clients: how fast they compute and send, and when they are online."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct

__all__ = ["Devices", "Fleet"]

_DAY = 86_400.0
_SPEEDS = ("examples_per_second", "upload", "download")
_WINDOW = ("online_from", "online_until")


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Devices of N clients, drawn or read; on the host."""

    examples_per_second: np.ndarray  # [N] gradients of single examples per second
    upload: np.ndarray  # [N] bytes per second sent; infinite if it takes no time
    download: np.ndarray  # [N] bytes per second received
    windows: tuple[np.ndarray, ...]  # per client [W, 2] seconds of a day, in order
    day: float  # seconds, the period of the windows

    def seconds(self, examples: np.ndarray, up: float, down: float) -> np.ndarray:
        """Returns the seconds `[N]` of a task: receive bytes, compute, send bytes."""
        sending = down / self.download + up / self.upload
        return sending + examples / self.examples_per_second

    def online(self, clients: np.ndarray, time: float) -> np.ndarray:
        """Returns whether clients are online at a time in seconds, `bool[...]`."""
        return np.array([self.next_online(i, time) <= time for i in clients], bool)

    def next_online(self, client: int, time: float) -> float:
        """Returns the first time at or after `time` at which a client is online."""
        windows = self.windows[client]
        # A client without windows is always online.
        if not len(windows):
            return time
        midnight = time // self.day * self.day
        # A window of the day before may end after midnight.
        for start in (midnight - self.day, midnight, midnight + self.day):
            for opening, closing in start + windows:
                if time < closing:
                    return max(time, opening)
        raise AssertionError("every day has a window")


@struct.pytree_dataclass
class Devices:
    """Speeds of clients' devices, log-normal or from a table, and when they are online.

    Only the host reads them: they determine the cohorts and the ends of rounds, not the
    computation of a round.

    Attributes:
      examples_per_second: `[]` median, over clients, of the gradients of single
        examples that a device computes per second; > 0.
      spread: `[]` standard deviation of the logarithms of these speeds, at least 0.
      upload: `[]` median of the bytes per second that a device sends, > 0, or None
        if sending takes no time.
      download: `[]` median of the bytes per second that it receives, or None.
      bandwidth_spread: `[]` standard deviation of the logarithms of both, at least 0.
      online: `[]` share of every day in which a client is online, above 0 and at most
        1: one window, which begins at a client-specific hour. Running tasks finish.
      day: `[]` seconds of a day, > 0.
      traces: static; a csv file in place of the other fields: a row per client and
        window, or per client, with `client` (from 0), `examples_per_second`, and
        optionally `upload`, `download`, `online_from` and `online_until` in seconds of
        a day.
    """

    examples_per_second: float = struct.traced_field(default=1000.0, above=0)
    spread: float = struct.traced_field(default=0.5, at_least=0)
    upload: Any = struct.traced_field(default=None, above=0)
    download: Any = struct.traced_field(default=None, above=0)
    bandwidth_spread: float = struct.traced_field(default=0.5, at_least=0)
    online: float = struct.traced_field(default=1.0, above=0, at_most=1)
    day: float = struct.traced_field(default=_DAY, above=0)
    traces: str | None = struct.static_field(default=None)

    def fleet(self, rng: np.random.Generator, num_clients: int) -> Fleet:
        """Draws the devices of N clients, or reads them.

        Args:
          rng: random number generator.
          num_clients: N.

        Returns:
          The devices.

        Raises:
          InputError: if the table cannot be read, or lacks a client.
        """
        # Draw everything, used or not, so that no field changes another field's draws.
        normal = rng.standard_normal((3, num_clients))
        hours = rng.random(num_clients)
        if self.traces is not None:
            return _read(Path(self.traces), num_clients, float(self.day))

        def speeds(
            median: core.Scalar | None, spread: core.Scalar, draws: np.ndarray
        ) -> np.ndarray:
            if median is None:
                return np.full(num_clients, np.inf)
            return float(median) * np.exp(float(spread) * draws)

        day, share = float(self.day), float(self.online)
        no_window = np.zeros((0, 2))
        windows = [
            no_window if share >= 1 else np.array([[start, start + share * day]])
            for start in day * hours
        ]
        return Fleet(
            examples_per_second=speeds(
                self.examples_per_second, self.spread, normal[0]
            ),
            upload=speeds(self.upload, self.bandwidth_spread, normal[1]),
            download=speeds(self.download, self.bandwidth_spread, normal[2]),
            windows=tuple(windows),
            day=day,
        )


def _read(path: Path, num_clients: int, day: float) -> Fleet:
    """Reads the devices of clients from a table."""
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise checks.InputError(f"Cannot read traces '{path}': {error}.") from error
    missing = [n for n in ("client", _SPEEDS[0]) if n not in table.columns]
    names = ("client", *_SPEEDS, *_WINDOW)
    extras = [name for name in table.columns if name not in names]
    if missing or extras or len(set(_WINDOW) & set(table.columns)) == 1:
        raise checks.InputError(
            f"Expected columns client and {_SPEEDS[0]} in '{path}', and at most"
            f" {', '.join(_SPEEDS[1:])} and both of {', '.join(_WINDOW)}, got"
            f" {', '.join(map(str, table.columns))}."
        )
    numbers: Any = table.apply(pd.to_numeric, errors="coerce")
    if numbers.isna().any().any():
        # Rows count from 0, and the header is line 1 of the file.
        line = int(np.flatnonzero(numbers.isna().any(axis=1))[0]) + 2
        raise checks.InputError(
            f"Expected a number in every cell of '{path}', but line {line} lacks one."
        )
    if (numbers[[n for n in _SPEEDS if n in numbers]] <= 0).any().any():
        raise checks.InputError(f"Expected speeds above 0 in '{path}'.")
    absent = sorted(set(range(num_clients)) - set(numbers["client"].astype(int)))
    if absent:
        raise checks.InputError(
            f"Expected a row of every client from 0 to {num_clients - 1} in '{path}',"
            f" but {len(absent)} have none, the first of them {absent[0]}."
        )
    clients = numbers.drop_duplicates("client").set_index("client")
    clients = clients.loc[range(num_clients)]
    # Columns that the table lacks take no time.
    columns = clients.reindex(columns=[*_SPEEDS], fill_value=np.inf).to_numpy(float).T
    speeds = dict(zip(_SPEEDS, columns, strict=True))
    windows = [np.zeros((0, 2))] * num_clients
    if _WINDOW[0] in numbers:
        spans = numbers[[*_WINDOW]].to_numpy(float)
        is_empty = spans[:, 0] >= spans[:, 1]
        if is_empty.any() or (spans < 0).any() or (spans > day).any():
            raise checks.InputError(
                f"Expected windows of '{path}' to begin before they end, within a day"
                f" of {day:g} seconds."
            )
        owner = numbers["client"].to_numpy(int)
        windows = [np.sort(spans[owner == i], axis=0) for i in range(num_clients)]
    return Fleet(**speeds, windows=tuple(windows), day=day)
