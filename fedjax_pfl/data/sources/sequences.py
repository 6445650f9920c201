"""Series cut into windows: the next character of a play, the next return of a stock."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import prices, text
from fedjax_pfl.data.sources import base, prepared

__all__ = ["Shakespeare", "Stocks"]

_FILE = "tiny_shakespeare.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shakespeare(base.FileSource):
    """Tiny Shakespeare: prediction of the next character; clients are the speakers.

    The speeches of a speaker are joined in their order, and so are the examples. Only
    speakers with more than `context` characters are clients.

    Attributes:
      verify: compare the text with its checksum.
      context: characters of an input.
      stride: characters between the ends of two examples.
    """

    context: int = struct.static_field(default=80, at_least=1)
    stride: int = struct.static_field(default=10, at_least=1)
    name = "shakespeare"
    layouts = (base.Layout("text", (_FILE,)),)
    builder = "tiny_shakespeare"
    sha256 = {_FILE: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x int32[S, context]`, ids of characters, one-hot `embeddings`."""
        path = located.paths[0]
        if located.layout == prepared.LAYOUT:
            # tensorflow-datasets cuts the text in three; joined again it has the same
            # checksum.
            splits = ("train", "validation", "test")  # of one text
            examples = prepared.read_examples(self.builder, located.paths, splits)
            content = "".join(example["text"] for example in examples).encode()
            self.verify_content(content, path, _FILE)
        else:
            content = self.content(path)
        speeches = text.read_speeches(content, path)
        characters = sorted(set("".join(speeches.values())))
        number = {character: row for row, character in enumerate(characters)}
        ids = {
            speaker: np.array([number[character] for character in speech], np.int32)
            for speaker, speech in speeches.items()
        }
        windows, client, names = _windows(ids, self.context, self.stride)
        if not names:
            raise checks.InputError(
                f"No speaker in '{path}' has more than {self.context} characters."
            )
        return datasets.Dataset(
            name=self.name,
            x=windows[:, :-1],
            y=windows[:, -1],
            class_names=tuple(characters),
            client=client,
            client_names=names,
            ordered=True,
            constants={"embeddings": np.eye(len(characters), dtype=np.float32)},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stocks(base.FileSource):
    """Log returns of the last days of a stock; clients are the tickers.

    Read from the only `.csv` file (`.csv.gz`) with the columns `date`, `ticker` and
    `adj_close` or `close`. Returns are those between successive rows of a ticker, and
    examples are in order of time. Inputs are shown in units of the standard deviation
    of all returns of the file, one factor for all. Tickers with too few days for
    one example are no clients.

    Attributes:
      verify: compare the known file with its checksum; others have none.
      window: returns of an input.
    """

    window: int = struct.static_field(default=30, at_least=1)
    name = "stocks"
    layouts = (base.Layout("csv", (), ("*.csv",)),)
    sha256 = {
        "sp500_50_daily_2006_2019.csv": (
            "a9da0f28a7196c925650276c2d52cf26aac49a3d475275a74c2cb7da61d08bb6"
        )
    }

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x float32[S, window]`; `y` is 1 if the next return is > 0."""
        path = self.only_path(located)
        table = prices.parse_prices(self.content(path), path)
        closes = table.values[..., 0].T
        returns = {
            ticker: np.diff(np.log(column[~np.isnan(column)]))
            for ticker, column in zip(table.tickers, closes, strict=True)
        }
        deviation = np.concatenate(list(returns.values())).std()
        windows, client, names = _windows(returns, self.window)
        if not names or not deviation > 0:
            raise checks.InputError(
                f"The file '{path}' has no ticker of more than {self.window + 1} days,"
                " or no price that changes."
            )
        return datasets.Dataset(
            name=self.name,
            x=windows[:, :-1],
            y=(windows[:, -1] > 0).astype(int),
            class_names=("not up", "up"),
            client=client,
            client_names=names,
            ordered=True,
            scale=1 / deviation,
        )

    def only_path(self, located: base.Located) -> Path:
        """Returns the only file.

        Raises:
          InputError: if there are several.
        """
        path, *surplus = located.paths
        if surplus:
            raise checks.InputError(
                f"Data set {self.name!r} needs one .csv file, but '{path.parent}' has"
                f" {', '.join(path.name for path in located.paths)}."
            )
        return path


def _windows(
    series: Mapping[str, np.ndarray], length: int, stride: int = 1
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Cuts series into windows `[S, length + 1]`, with clients and their names."""
    # Windows end `stride` values apart. Returns windows `[S, length + 1]`, the client
    # `int32[S]` of each, and the names of the clients with a series longer than an
    # input.
    views = {
        name: np.lib.stride_tricks.sliding_window_view(values, length + 1)[::stride]
        for name, values in series.items()
        if len(values) > length
    }
    rows = [*views.values()] or [np.empty((0, length + 1))]
    return np.concatenate(rows), datasets.owners(map(len, rows)), tuple(views)
