"""A user's own files: tables, arrays, folders of images, LEAF's JSON."""

import dataclasses
import itertools
import numbers
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import preparation as preparations
from fedjax_pfl.data.readers import binary, files, images, leaf, tables, times, tokens
from fedjax_pfl.data.sources import base, user_arrays
from fedjax_pfl.data.sources.user_arrays import arrays_dataset

__all__ = ["Csv", "ImageFolder", "LeafJson", "Npz", "arrays_dataset", "source_for"]

_TEXTS = (".csv", ".tsv", ".txt")
_TABLES = (*_TEXTS, ".parquet")
_JSON = (".json",)  # at any depth of a folder
_MAX_BYTES = 8 << 30
_MAX_CATEGORIES = 100
_FILLED = ("mean", "class")  # values of `missing` that fill gaps
_TOO_LARGE = 2**53  # of whole numbers as floats
_MAX_CLASSES = 20  # of whole numbers, where the task is told from the data


def source_for(
    path: str,
    label: str | None = None,
    client: str | None = None,
    data_dir: str | None = None,
    split: str | None = None,
    time: str | None = None,
) -> datasets.Source:
    """Picks the source of a user's data by the suffix of its name.

    Args:
      path: a table (`.csv`, `.tsv` or `.txt`, plain or `.gz`, or `.parquet`), an
        archive (`.npz`), a folder with a table or an archive for each client, a file
        (`.json`, plain or `.gz`) or folder of LEAF's JSON, or a folder of images.
      label: column of a table, or array of an archive (`y` by default), to predict.
      client: column or array that names each example's client.
      data_dir: directory that may hold the folder, as for the sources.
      split: column or array that names each example's part of a given split.
      time: column or array by which each client's examples are sorted: the last ones
        are its test part.

    Returns:
      The source.

    Raises:
      InputError: if the kind is unknown, the label of a table is missing, or a label,
        client, split or time is given for data that have none of these columns.

    Example:
      >>> source_for("visits.csv", "age", "hospital").client
      'hospital'
      >>> source_for("images.npz")
      Npz(path='images.npz', x='x', y='y', client=None, split=None, time=None, ...)
    """
    checks.path("path", path)
    path = str(path)
    suffix = Path(path.lower().removesuffix(".gz")).suffix
    if suffix not in (*_TABLES, ".npz", ".json"):
        folder = _locate(path, data_dir)
        if not folder.is_dir():
            raise checks.InputError(
                f"Expected data in a file of the kind {', '.join(_TEXTS)} or .json"
                " (plain or .gz), in a .parquet or .npz file, or in a folder, got"
                f" '{path}'."
            )
        # A folder has the kind of its files, so that tables per client need no option.
        suffix = _kind_of(folder)
    if suffix in _TABLES:
        if not label:
            raise checks.InputError(
                f"The table '{path}' needs --label (label=...), the column to predict."
            )
        return Csv(path=path, label=label, client=client, split=split, time=time)
    if suffix == ".npz":
        return Npz(path=path, y=label or "y", client=client, split=split, time=time)
    # These kinds name clients and classes themselves: an option would be ignored.
    source = LeafJson(path=path) if suffix == ".json" else ImageFolder(path=path)
    options = {"label": label, "client": client, "split": split, "time": time}
    for option, value in options.items():
        if value is not None:
            raise checks.InputError(
                f"The data in '{path}' name classes, clients and parts themselves and"
                f" have no columns, expected no --{option} ({option}={value!r})."
            )
    return source


@dataclasses.dataclass(frozen=True, kw_only=True)
class _UserSource(base.CachedSource):
    """A user's own file or folder.

    Attributes:
      path: relative to the current directory or else to the data directory.
    """

    path: str = ""

    def __post_init__(self):
        checks.path("path", self.path)
        object.__setattr__(self, "path", str(self.path))
        struct.check_fields(self)

    suffixes: ClassVar[tuple[str, ...]]  # of files that a folder may have

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the file, or the files of the folder."""
        path = _locate(self.path, data_dir)
        if not path.is_dir():
            return base.Located(path, self.name, (path,))
        files.check_directory(path)
        paths = _files_of(path, self.suffixes)
        if not paths:
            kind = f"file of the kind {', '.join(self.suffixes)}"
            if self.suffixes == _JSON:
                kind = ".json or .json.gz file"
            raise checks.InputError(f"The folder '{path}' holds no {kind}.")
        return base.Located(path, self.name, paths)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Npz(_UserSource):
    """Arrays in archives of `numpy.savez`, interpreted as by `arrays_dataset`.

    In a folder every archive is a client, which the name of the file names, unless
    `client` names an array. Arrays of the same names with `_train` and `_test` after
    them, such as `x_test`, are a given split, which is kept; the training arrays
    may also have the bare names.

    Attributes:
      path: the file or folder; relative to the current directory or else to the data
        directory.
      x: name of the array of inputs.
      y: name of the array of targets.
      client: name of the array of clients, or None for `client` if there is one.
      split: name of an array with each example's part, `train`, `validation` or
        `test`, or None.
      time: name of an array of numbers or texts by which each client's examples are
        sorted, the last ones its test part; or None.
      max_bytes: limit of the memory of these arrays together.
    """

    x: str = "x"
    y: str = "y"
    client: str | None = None
    split: str | None = None
    time: str | None = None
    max_bytes: int = struct.static_field(
        default=_MAX_BYTES, at_least=1, at_most=1 << 50
    )
    name = "npz"
    suffixes = (".npz",)

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns the arrays; clients are numbered in sorted order."""
        if located.paths == (located.root,):
            arrays = self._arrays(located.root, self.max_bytes)
        else:
            room, pieces = self.max_bytes, []
            for path in located.paths:
                pieces.append(self._arrays(path, room))
                room -= sum(np.asarray(a).nbytes for a in pieces[-1].values())
            columns = {kind: [piece[kind] for piece in pieces] for kind in pieces[0]}
            arrays, sizes = user_arrays.joined(columns, f"'{located.root}'")
            if self.client is None:
                # Without an array of clients, every archive of the folder is a client.
                stems = list(map(user_arrays.stem, located.paths))
                arrays["clients"] = np.repeat(stems, sizes)
        return arrays_dataset(
            arrays["inputs"],
            arrays["targets"],
            arrays["clients"],
            name=user_arrays.stem(located.root),
            part=arrays["parts"],
            order=arrays["times"],
        )

    def _arrays(self, path: Path, max_bytes: int) -> dict[str, Any]:
        """Returns the arrays of one archive by role, None for absent ones."""
        client = self.client or "client"
        stored = binary.array_names(path)
        # Either one set of arrays, or a given split in `x_train` (or `x`) and `x_test`.
        endings = [""]
        if f"{self.x}_test" in stored:
            endings = ["" if self.x in stored else "_train", "_test"]
        columns = [name for name in (self.x, self.y, self.client, self.time) if name]
        needed = [f"{name}{ending}" for ending in endings for name in columns]
        needed += [] if self.split is None else [self.split]
        optional = [f"{client}{ending}" for ending in endings]
        # One call for all arrays, since they share the limit of memory.
        values = binary.read_arrays(path, needed, max_bytes, optional)
        names = {"inputs": self.x, "targets": self.y, "clients": client}
        names |= {"times": self.time or ""}
        arrays = {
            kind: [values.get(name + ending) for ending in endings]
            for kind, name in names.items()
        }
        if len(endings) == 1:
            parts = None
            if self.split is not None:
                where = f"the array {self.split!r} of '{path}'"
                parts = _parts(values[self.split].tolist(), where)
            return {kind: array for kind, (array,) in arrays.items()} | {"parts": parts}
        if self.split is not None:
            raise checks.InputError(
                f"Expected no split={self.split!r} with the array '{self.x}_test' of"
                f" '{path}', which is the test part."
            )
        arrays, sizes = user_arrays.joined(arrays, f"'{path}'")
        return arrays | {"parts": np.repeat([datasets.TRAIN, datasets.TEST], sizes)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafJson(_UserSource):
    """Files in LEAF's JSON format with inputs of numbers; each user is a client.

    Examples of a user in several files come together. Those in folders called `test`
    are the test part if there are others. Targets are whole numbers, numbered as
    classes in sorted order.

    Attributes:
      path: a `.json` or `.json.gz` file, or a folder of such files at any depth;
        relative to the current directory or else to the data directory.
      shape: of one input, for example `(28, 28)`; None leaves it as stored.
      split: `given` by the folders, or `drawn` as of data without parts.
    """

    shape: tuple[int, ...] | None = None
    split: Literal["given", "drawn"] = "given"
    name = "leaf"
    suffixes = _JSON

    def __post_init__(self):
        if self.shape is not None:
            object.__setattr__(self, "shape", _as_sizes("shape", self.shape))
        super().__post_init__()

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns all users' examples; clients are numbered in sorted order."""
        is_test = [path.parent.name == "test" for path in located.paths]
        train = leaf.read_leaf(
            itertools.compress(located.paths, np.logical_not(is_test))
        )
        test = leaf.read_leaf(itertools.compress(located.paths, is_test))
        # A user's training examples come before its test examples.
        pieces = [
            (user, part, *users[user])
            for user in train | test
            for part, users in ((datasets.TRAIN, train), (datasets.TEST, test))
            if user in users
        ]
        if not pieces:
            raise checks.InputError(
                f"The LEAF data in '{located.root}' hold no example."
            )
        place = f"of the LEAF data in '{located.root}'"
        x = datasets.as_array([row for *_, inputs, _ in pieces for row in inputs])
        y = datasets.as_array([row for *_, targets in pieces for row in targets])
        sizes = [len(targets) for *_, targets in pieces]
        parts = np.repeat([part for _, part, *_ in pieces], sizes)
        if x.dtype.kind not in "iuf":
            raise checks.InputError(
                f"Expected x {place} to be inputs of numbers, equally long."
            )
        # Some writers of LEAF's files have 3.0 for 3; beyond 2^53 floats have gaps.
        if (
            y.dtype.kind not in "iuf"
            or y.ndim != 1
            or not ((y == np.round(y)) & (np.abs(y) <= 2**53)).all()
        ):
            raise checks.InputError(
                f"Expected y {place} to be one whole number per input."
            )
        if self.shape is not None:
            if np.prod(x.shape[1:]) != np.prod(self.shape):
                raise checks.InputError(
                    f"Expected inputs of the shape {self.shape} in '{located.root}',"
                    f" got {x.shape[1:]}."
                )
            x = x.reshape(len(x), *self.shape)
        return arrays_dataset(
            x,
            y.astype(np.int64),
            [user for user, *_, targets in pieces for _ in targets],
            name=user_arrays.stem(located.root),
            part=parts if train and test and self.split == "given" else None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFolder(_UserSource):
    """A folder of PNG, JPEG, WebP or BMP images, shown as numbers from 0 to 1.

    Examples, classes and clients are in the order of their names. Images are grey if
    all are and in three colors otherwise. If the folder has only `train`, `test`
    and perhaps `validation`, these are a given split, which is kept.

    Attributes:
      path: the folder; relative to the current directory or else to the data directory.
      layout: `"class"` for `class/file`, `"client"` for `client/class/file`, or
        `"auto"` for either; below the parts of a given split.
      size: height and width to which images are resized; None requires equal sizes.
    """

    layout: Literal["auto", "class", "client"] = "auto"
    size: tuple[int, int] | None = None
    name = "images"

    def __post_init__(self):
        if self.size is not None:
            size = _as_sizes("size", self.size)
            if len(size) != 2:
                raise checks.InputError(
                    f"Expected size to be a height and a width, got {self.size!r}."
                )
            object.__setattr__(self, "size", size)
        super().__post_init__()

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the images."""
        root = _locate(self.path, data_dir)
        return base.Located(root, *images.list_images(root, self.layout))

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, H, W]` or, in colors, `uint8[S, H, W, 3]`."""
        clients = [path.parents[1].name for path in located.paths]
        levels = {"class": 2, "client": 3}[located.layout]
        folders = [path.relative_to(located.root).parts for path in located.paths]
        part = None
        # One level more than the layout has: the parts of a given split.
        if len(folders[0]) > levels:
            part = [datasets.PARTS[names[0].casefold()] for names in folders]
        return arrays_dataset(
            images.read_images(located.paths, self.size, _MAX_BYTES),
            [path.parent.name for path in located.paths],
            clients if located.layout == "client" else None,
            name=user_arrays.stem(located.root),
            labels=f"the folder '{located.root}'",
            part=part,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Csv(_UserSource):
    """A table: comma, semicolon or tab separated with a header, or parquet.

    In a folder every table is a client, which the name of the file names, unless
    `client` names a column; their columns are the same, in any order.

    A column of numbers is one feature, as is one of true and false.
    A column of text becomes one feature of zeros and ones for each of its texts in
    sorted order. Mixed columns and infinite values are refused. With `text` an input is
    the ids of that column's tokens, and other columns are left out.

    Attributes:
      path: the file, plain or `.gz`, or the folder; relative to the current directory
        or else to the data directory.
      label: column to predict.
      client: column that names each example's client, or None.
      split: column that names each example's part, `train`, `validation` or `test`, or
        None for a split that is drawn.
      time: column of numbers, ISO dates or timestamps by which each client's rows are
        sorted: the last ones are its test part, those before validate; rows of one time
        keep their order. None for a split at random.
      window: W rows of the same client before a row, in order of time, that are its
        input `[W, F]`: all features and, last, the label, as a number or zeros and ones
        for its classes. No window reaches over the border between two parts: W rows
        after it have no example. None for the row itself as input.
      task: `"classification"`; `"regression"`, with targets scaled by the training
        rows; or `"auto"`: classes if the label is text or whole numbers of at most 20
        different values, regression if some number has a fraction.
      scaling: of columns of numbers, by the training rows of a federation: `"standard"`
        to mean 0 and variance 1, `"minmax"` to [0, 1], or `"none"`. Columns that are
        constant in these become 0.
      scale: whether they are scaled by the training rows of `"all"` clients, or of each
        `"client"` by its own.
      missing: empty cells and such as `NA`: `"refuse"` them; `"drop"` their rows; or
        fill gaps of features, texts with a category of their own that comes last and
        numbers with the `"mean"` of the training rows that scale them, or, as
        `"class"`, with 0 after scaling and a further feature that is 1 there.
      drop: columns to leave out.
      categories: columns of numbers that are codes and are treated as text.
      text: column of texts that a `tokenizer` cuts into tokens, or None.
      tokenizer: path of a `tokenizer.json`, `"minilm"` for that of `minilm`, or None.
      num_tokens: tokens of a text; longer ones are cut, shorter ones padded; None for
        the length of the longest text.
      separator: mark between columns, or None for the one of comma, semicolon and tab
        that the header has most of.
      decimal: mark between the whole part of a number and its fraction.
      thousands: mark between groups of three digits of a number, or None.
      encoding: of the file's characters, as Python names it.
      comment: what lines begin with that are skipped, such as `"#"`, or None.
    """

    label: str = ""
    client: str | None = None
    split: str | None = struct.static_field(default=None)
    time: str | None = struct.static_field(default=None)
    window: int | None = struct.static_field(default=None, at_least=1)
    task: Literal["auto", "classification", "regression"] = "auto"
    scaling: Literal["standard", "minmax", "none"] = "standard"
    scale: Literal["all", "client"] = "all"
    missing: Literal["refuse", "drop", "mean", "class"] = "refuse"
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    text: str | None = struct.static_field(default=None)
    tokenizer: str | None = struct.static_field(default=None)
    num_tokens: int | None = struct.static_field(default=None, at_least=1)
    separator: str | None = struct.static_field(default=None)
    decimal: str = struct.static_field(default=".")
    thousands: str | None = struct.static_field(default=None)
    encoding: str = struct.static_field(default="utf-8")
    comment: str | None = struct.static_field(default=None)
    name = "csv"
    suffixes = _TABLES

    def __post_init__(self):
        for field in ("drop", "categories"):
            value = _as_tuple(field, getattr(self, field), str, "('age', 'city')")
            object.__setattr__(self, field, value)
        super().__post_init__()
        # Built once here, so that wrong marks are refused before files are read.
        self._dialect()
        if self.window is not None and (self.time is None or self.text is not None):
            raise checks.InputError(
                f"Expected a column of times ({_setting('time', 'hour')}) and no column"
                f" of texts for windows, got window={self.window}, time={self.time!r}"
                f" and text={self.text!r}."
            )
        columns = [*self._texts(), *self.drop]
        for column in columns:
            if column and columns.count(column) > 1:
                raise checks.InputError(
                    f"Expected {column!r} once in label, client, split, time, text,"
                    " drop and categories."
                )

    def _dialect(self) -> tables.Dialect:
        """Returns how the table is written, checked."""
        fields = dataclasses.fields(tables.Dialect)
        return tables.Dialect(**{f.name: getattr(self, f.name) for f in fields})

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the file and, as the last one, the tokenizer."""
        if (self.text is None) != (self.tokenizer is None):
            raise checks.InputError(
                "Expected both text, a column, and its tokenizer, got"
                f" text={self.text!r} and tokenizer={self.tokenizer!r}."
            )
        located = super().locate(data_dir)
        if self.tokenizer is None:
            return located
        return located.followed_by(tokens.find_tokenizer(self.tokenizer))

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x float32[S, F]`, or `int32[S, T]` for a text.

        Clients are numbered in the order of their names.
        """
        paths, tokenizer = located.paths, None
        if self.tokenizer is not None:
            *paths, tokenizer = paths
        keep, dialect = self._texts(), self._dialect()
        parts = [
            tables.read_parquet(path, keep)
            if path.suffix == ".parquet"
            else tables.read_table(path, keep, dialect)
            for path in paths
        ]
        name = user_arrays.stem(located.root)
        if paths[0] == located.root:
            return self.dataset(parts[0], name, tokenizer=tokenizer)
        table, stems = tables.joined(parts, f"'{located.root}'"), None
        if self.client is None:
            sizes = [len(part.rows) for part in parts]
            stems = np.repeat(list(map(user_arrays.stem, paths)), sizes)
        return self.dataset(table, name, stems, tokenizer)

    def _texts(self) -> list[str]:
        """Returns the columns that stay text although their values may be numbers."""
        columns = (self.label, self.client, self.split, self.time, self.text)
        return [name for name in (*columns, *self.categories) if name is not None]

    def dataset(
        self,
        table: tables.Table,
        name: str,
        owners: np.ndarray | None = None,
        tokenizer: Path | None = None,
    ) -> datasets.Dataset:
        """Makes a data set of a table.

        Args:
          table: has the columns that the fields of this source name.
          name: of the data set.
          owners: names `[S]` of the clients of its rows, if no column has them.
          tokenizer: its file, if a column of texts is the input.
        """
        roles = [self.label, self.client, self.split, self.time]
        roles = [column for column in roles if column is not None]
        excluded = [*roles, *self.drop]
        for column in (*excluded, *self.categories, self.text):
            if column is not None:
                checks.known(column, table.columns, f"column of {table.where}")
        names = [column for column in table.columns if column not in excluded]
        if not names and self.window is None:
            raise checks.InputError(
                f"The table {table.where} has no column left except"
                f" {', '.join(excluded)}."
            )
        used = [*roles, *(names if tokenizer is None else ())]
        # Rows with gaps leave before features are made: categories and classes are of
        # the rows that are used.
        table, notes = _with_values(table, used, self.missing)
        features, preparation = [], None
        if tokenizer is None:
            features = [f for name in names for f in _features(table, name, self)]
        y, class_names = _targets(table, self)
        # A window has the label of earlier rows as its last feature (autoregression).
        if self.window is not None:
            is_number = class_names is None
            eye = None if is_number else np.eye(len(class_names), dtype=np.float32)
            features.append(y[:, None] if eye is None else eye[y])
        if tokenizer is None:
            x, preparation = _inputs(features, self)
        else:  # as it stands, also an empty one or one that says "nan"
            texts = [str(value) for value in table.columns[self.text or ""]]
            x = tokens.token_ids(texts, tokenizer, self.num_tokens)
        client = client_names = part = None
        owner = None
        if owners is not None:
            owner = owners[table.rows]
        elif self.client is not None:
            owner = table.texts(self.client)
        if owner is not None:
            client, client_names = user_arrays.clients(owner.tolist())
        if self.split is not None:
            where = f"the column {self.split!r} of {table.where}"
            part = _parts(table.texts(self.split), where)
        dataset = datasets.Dataset(
            name=name,
            part=part,
            x=x,
            y=y,
            class_names=class_names,
            client=client,
            client_names=client_names,
            scale_targets=class_names is None,
            any_order=self.time is None,
            preparation=preparation,
            notes=notes,
        )
        if self.time is None:
            return dataset
        where = f"the column {self.time!r} of {table.where}"
        moments = times.parse_times(table.texts(self.time), where)
        if moments is None:
            raise checks.InputError(
                f"Expected numbers, or ISO dates such as 2024-03-01, in {where}, got"
                f" {table.texts(self.time)[0]!r}."
            )
        # Windows are cut after sorting, and see earlier rows only.
        dataset = user_arrays.by_time(dataset, moments, where)
        if self.window is None:
            return dataset
        return user_arrays.windowed(dataset, self.window)


def frame_dataset(frame: Any, name: str, options: Csv) -> datasets.Dataset:
    """Makes a data set of a frame of pandas, or with `to_pandas()`."""
    import pandas as pd  # slow to import, and needed by frames only

    if hasattr(frame, "to_pandas") and not isinstance(frame, type):
        frame = frame.to_pandas()
    if not isinstance(frame, pd.DataFrame):
        raise checks.InputError(
            "Expected frame to be a data frame of pandas or an object with to_pandas(),"
            f" got {checks.shown(frame)}."
        )
    where = f"the frame {name!r}"
    # The path and the dialect of the options have no meaning for a frame.
    table = tables.frame_table(
        frame, where, lambda row: f"{where} in row {row}", options._texts()
    )
    tokenizer = None
    if options.tokenizer is not None:
        tokenizer = tokens.find_tokenizer(options.tokenizer)
    return options.dataset(table, name, tokenizer=tokenizer)


def _parts(words: Iterable[Any], where: str) -> np.ndarray:
    """Returns the parts `int8[S]` of a given split, from their names."""
    names = [str(word).strip().casefold() for word in words]
    if wrong := sorted(set(names) - datasets.PARTS.keys()):
        raise checks.InputError(
            f"Expected train, validation or test in {where}, got {wrong[0]!r}."
        )
    return np.array([datasets.PARTS[name] for name in names], np.int8)


def _setting(field: str, value: object) -> str:
    """Returns how a field of the user's own data is set."""
    return checks.setting(f"federation.dataset.{field}", value)


def _with_values(
    table: tables.Table, names: Sequence[str], missing: str
) -> tuple[tables.Table, tuple[str, ...]]:
    """Returns the rows that are used, and notes about missing values."""
    if missing == "refuse":
        return table, ()
    gaps = np.stack([table.missing(name) for name in names])
    has_gap = np.array(gaps.any(axis=0))
    if missing == "drop":
        if has_gap.all():
            raise checks.InputError(
                f"Every row of {table.where} lacks a value, expected one without gaps;"
                f" leave columns out, as in {_setting('drop', (names[-1],))}."
            )
        table = table.chosen(~has_gap)
        note = f"{has_gap.sum():,} of {len(has_gap):,} rows were left out because of"
        note += " missing values"
    else:
        numbers = {"mean": "means of training rows"}
        numbers["class"] = "0 and a feature that says so"
        note = f"{gaps.sum():,} missing values in {has_gap.sum():,} of"
        note += f" {len(has_gap):,} rows were filled: numbers by {numbers[missing]},"
        note += " texts by a category"
    return table, (note,) if has_gap.any() else ()


def _inputs(
    features: Sequence[np.ndarray], options: Csv
) -> tuple[np.ndarray, preparations.Preparation | None]:
    """Joins features to inputs `float32[S, F]`, with the preparation of numbers."""
    # Numbers are float64 until they are scaled; only categories are float32 already.
    starts = np.cumsum([0, *(feature.shape[1] for feature in features)])
    is_number = [feature.dtype == np.float64 for feature in features]
    x = np.concatenate([f.astype(np.float32) for f in features], axis=1)
    if not any(is_number) or (options.scaling == "none" and np.isfinite(x).all()):
        return x, None
    preparation = preparations.Preparation(
        numbers=np.concatenate(list(itertools.compress(features, is_number)), axis=1),
        columns=starts[:-1][is_number],
        scaling=options.scaling,
        scale=options.scale,
        fill="mean" if options.missing == "mean" else "zero",
    )
    return preparation.inputs(x), preparation


def _features(table: tables.Table, name: str, options: Csv) -> list[np.ndarray]:
    """Returns a column as `float64[S, 1]` or as `float32[S, categories]`."""
    if name in options.categories:
        return [_one_hot(table, name, options)]
    categories, drop = (_setting(field, (name,)) for field in ("categories", "drop"))
    advice = f"list the column in {categories} or {drop}"
    with_gaps = options.missing in _FILLED
    numbers = table.numbers(name, advice, with_gaps=with_gaps)
    if numbers is None:
        is_missing = table.missing(name) & with_gaps
        texts = np.array([text.casefold() for text in table.columns[name]])
        if not set(texts[~is_missing]) <= {"true", "false"}:
            return [_one_hot(table, name, options)]
        numbers = np.where(is_missing, np.nan, texts == "true")
    features = [numbers[:, None]]
    gaps = np.isnan(features[0])
    # The model sees which numbers are missing, as scaled they all become 0.
    if options.missing == "class" and gaps.any():
        features.append(gaps.astype(np.float32))
    return features


def _one_hot(table: tables.Table, name: str, options: Csv) -> np.ndarray:
    """Returns zeros and ones `float32[S, categories]`, categories in sorted order."""
    # Missing texts are the last category, if they are not refused.
    is_missing = table.missing(name) & (options.missing in _FILLED)
    present = table.chosen(~is_missing) if is_missing.any() else table
    categories: list[Any] = sorted(set(present.texts(name)))
    texts = table.columns[name].copy()
    if is_missing.any():
        categories.append(None)
        texts[is_missing] = None
    if len(categories) > _MAX_CATEGORIES:
        raise checks.InputError(
            f"Column {name!r} of {table.where} holds {len(categories)} texts,"
            f" expected at most {_MAX_CATEGORIES}; leave it out with"
            f" {_setting('drop', (name,))}, or give it a tokenizer with"
            f" {_setting('text', name)}."
        )
    codes, _ = user_arrays.numbered(texts, categories)
    return np.eye(len(categories), dtype=np.float32)[codes]


def _targets(
    table: tables.Table, options: Csv
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Returns the targets `[S]` and, for classes, their names."""
    texts = table.texts(options.label)
    as_classes, as_amounts = (
        _setting("task", task) for task in ("classification", "regression")
    )
    if options.task == "classification":
        numbers = tables.parse_numbers(texts, table.dialect)
    else:
        numbers = table.numbers(options.label, f"pass {as_classes}")
        if numbers is None and options.task == "regression":
            raise checks.InputError(
                f"Expected numbers as the label of {table.where}, got {texts[0]!r}."
            )
    if numbers is not None:
        is_whole = (numbers == np.round(numbers)).all()
        distinct = len(np.unique(numbers))
        # Few whole numbers are classes, fractions are amounts; many whole numbers may
        # be either, and a wrong guess would train silently.
        if options.task == "auto" and is_whole and distinct > _MAX_CLASSES:
            raise checks.InputError(
                f"The label {options.label!r} of {table.where} holds {distinct}"
                " different whole numbers: say whether they are amounts, with"
                f" {as_amounts}, or classes, with {as_classes}."
            )
        if options.task == "regression" or (options.task == "auto" and not is_whole):
            return numbers, None
        row = int(np.abs(numbers).argmax())
        if abs(numbers[row]) >= _TOO_LARGE:
            raise checks.InputError(
                f"The label of {table.where} holds {texts[row]}, too large to be"
                f" exact; write text, or pass {as_amounts}."
            )
        # The names of classes are then 1 and not 1.0.
        texts = [int(n) if n.is_integer() else n for n in numbers.tolist()]
    return user_arrays.encode_classes(
        texts, f"the label {options.label!r} of {table.where}"
    )


def _as_tuple(name: str, value: object, kind: type, example: str) -> tuple[Any, ...]:
    """Converts an option that is a list of items of a kind to a tuple, for hashing."""
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, kind) for item in value
    ):
        raise checks.InputError(
            f"Expected {name} to be a list such as {example}, got"
            f" {checks.shown(value)}."
        )
    return tuple(value)


def _as_sizes(name: str, value: object) -> tuple[int, ...]:
    """Converts an option that is a list of sizes, whole numbers of at least 1."""
    sizes = _as_tuple(name, value, numbers.Integral, "(28, 28)")
    for size in sizes:
        checks.positive_int(f"each number of {name}", size)
    return tuple(map(int, sizes))


def _locate(path: str, data_dir: str | None) -> Path:
    """Finds a user's file or folder; returns its absolute path."""
    if not path:
        raise checks.InputError(
            "Expected path to name the file or folder of the data, got ''."
        )
    relative = Path(os.path.expanduser(path))  # pathlib's refuses a wrong user
    # A relative path counts from the current directory or else from the data directory:
    # `data_dir`, or the environment's.
    candidates = [relative.absolute()]
    directory = data_dir or os.environ.get(base.DATA_DIR_VARIABLE)
    # With ".." the path would lead out of the data directory.
    if directory and not relative.is_absolute() and ".." not in relative.parts:
        root = Path(os.path.expanduser(directory))
        candidates.append(root.absolute() / relative)
    try:
        for candidate in candidates:
            if candidate.exists():
                return candidate
    except OSError as error:  # too long, or no permission
        raise checks.InputError(f"The path {path!r} cannot be looked up.") from error
    places = " or ".join(repr(str(candidate)) for candidate in candidates)
    raise checks.InputError(f"There is no file or folder {places}.")


def _files_of(folder: Path, suffixes: Sequence[str]) -> tuple[Path, ...]:
    """Finds the files of a folder, plain or `.gz`, by name, those in `test` last."""
    below = "**/" if suffixes == _JSON else ""
    with files.readable(f"The folder '{folder}'"):
        paths = [
            path
            for suffix in suffixes
            for path in files.find_files(folder, f"{below}*{suffix}")
            if not path.name.startswith(".")
        ]
        # A link may not lead to files outside of the folder that the user has named.
        root = os.path.realpath(folder)
        for path in paths:
            files.check_inside(path, root)
    return tuple(sorted(paths, key=lambda path: (path.parent.name == "test", path)))


def _kind_of(folder: Path) -> str:
    """Returns the suffix of the files of a folder; none for one of images."""
    # JSON first: LEAF's folders have subfolders as those of images do.
    if _files_of(folder, _JSON):
        return ".json"
    with files.readable(f"The folder '{folder}'"):
        if any(p.is_dir() and not p.name.startswith(".") for p in folder.iterdir()):
            return ""
    archives, texts = (_files_of(folder, kinds) for kinds in ((".npz",), _TABLES))
    if archives and texts:
        raise checks.InputError(
            f"Expected tables or archives in the folder '{folder}', got both:"
            f" '{texts[0].name}' and '{archives[0].name}'."
        )
    return ".npz" if archives else ".csv" if texts else ""
