"""A user's own files: tables, arrays, folders of images, LEAF's JSON."""

import dataclasses
import itertools
import numbers
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import binary, files, images, leaf, tables, tokens
from fedjax_pfl.data.sources import base, user_arrays
from fedjax_pfl.data.sources.user_arrays import arrays_dataset

__all__ = ["Csv", "ImageFolder", "LeafJson", "Npz", "arrays_dataset", "source_for"]

_TABLES = (".csv", ".tsv", ".txt")
_MAX_BYTES = 8 << 30
_MAX_CATEGORIES = 100
_TOO_LARGE = 2**53  # of whole numbers as floats
_MAX_CLASSES = 20  # of whole numbers, where the task is told from the data


def source_for(
    path: str,
    label: str | None = None,
    client: str | None = None,
    data_dir: str | None = None,
    split: str | None = None,
) -> datasets.Source:
    """Picks the source of a user's data by the suffix of its name.

    Args:
      path: a table (`.csv`, `.tsv` or `.txt`, plain or `.gz`), an archive (`.npz`), a
        file (`.json`, plain or `.gz`) or folder of LEAF's JSON, or a folder of images.
      label: column of a table, or array of an archive (`y` by default), to predict.
      client: column or array that names each example's client.
      data_dir: where a folder may be, as the sources take it.
      split: column or array that names each example's part of a given split.

    Returns:
      The source.

    Raises:
      InputError: if the kind is unknown, the label of a table is missing, or a label,
        client or split is given for data that have their own.

    Example:
      >>> source_for("visits.csv", "age", "hospital").client
      'hospital'
      >>> source_for("images.npz")
      Npz(path='images.npz', x='x', y='y', client=None, split=None, ...)
    """
    path = _as_path(path)
    suffix = pathlib.Path(path.lower().removesuffix(".gz")).suffix
    if suffix in _TABLES:
        if not label:
            raise checks.InputError(
                f"The table '{path}' needs --label (label=...), the column to predict."
            )
        return Csv(path=path, label=label, client=client, split=split)
    if suffix == ".npz":
        return Npz(path=path, y=label or "y", client=client, split=split)
    if suffix == ".json":
        source = LeafJson(path=path)
    else:
        folder = _locate(path, data_dir)
        if not folder.is_dir():
            raise checks.InputError(
                f"Expected data in a file of the kind {', '.join(_TABLES)} or .json"
                f" (plain or .gz), in an .npz file, or in a folder, got '{path}'."
            )
        kind = LeafJson if _json_files(folder) else ImageFolder
        source = kind(path=path)
    given = {"label": label, "client": client, "split": split}
    for option, value in given.items():
        if value is not None:
            raise checks.InputError(
                f"The data in '{path}' name classes, clients and parts themselves,"
                f" expected no --{option} ({option}={value!r})."
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
        object.__setattr__(self, "path", _as_path(self.path))
        struct.check_fields(self)

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the file."""
        path = _locate(self.path, data_dir)
        return base.Located(path, self.name, (path,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Npz(_UserSource):
    """Arrays in an archive of `numpy.savez`, interpreted as by `arrays_dataset`.

    Arrays of the same names with `_train` and `_test` after them, such as `x_test`, are
    a given split, which is kept; those of the training part may also have the bare
    names.

    Attributes:
      path: the file; relative to the current directory or else to the data directory.
      x: name of the array of inputs.
      y: name of the array of targets.
      client: name of the array of clients, or None for `client` if there is one.
      split: name of an array with each example's part, `train`, `validation` or
        `test`, or None.
      max_bytes: limit of the memory of these arrays together.
    """

    x: str = "x"
    y: str = "y"
    client: str | None = None
    split: str | None = None
    max_bytes: int = struct.static_field(
        default=_MAX_BYTES, at_least=1, at_most=1 << 50
    )
    name = "npz"

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns the arrays; clients are numbered in sorted order."""
        path, client = located.root, self.client or "client"
        own, clients = [self.x, self.y], [] if self.client is None else [client]
        found = binary.array_names(path)
        endings = [""]
        if f"{self.x}_test" in found:
            endings = ["" if self.x in found else "_train", "_test"]
        needed = [f"{n}{ending}" for ending in endings for n in [*own, *clients]]
        optional = [f"{client}{ending}" for ending in endings]
        needed += [] if self.split is None else [self.split]
        values = binary.read_arrays(path, needed, self.max_bytes, optional)
        if len(endings) == 1:
            given = values.get(self.split or "")
            part = None
            if given is not None:
                part = _parts(given.tolist(), f"the array {self.split!r} of '{path}'")
            arrays = [values.get(name) for name in (*own, client)]
        else:
            if self.split is not None:
                raise checks.InputError(
                    f"Expected no split={self.split!r} with the array"
                    f" '{self.x}_test' of '{path}', which is the test part."
                )
            pairs = [[values.get(n + end) for end in endings] for n in (*own, client)]
            arrays, part = user_arrays.joined(pairs, f"'{path}'")
        x, y, owners = arrays
        return arrays_dataset(x, y, owners, name=user_arrays.stem(path), part=part)


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

    def __post_init__(self):
        if self.shape is not None:
            object.__setattr__(self, "shape", _as_sizes("shape", self.shape))
        super().__post_init__()

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the file, or the files of the folder."""
        located = super().locate(data_dir)
        if not located.root.is_dir():
            return located
        files.check_directory(located.root)
        paths = _json_files(located.root)
        if not paths:
            raise checks.InputError(
                f"The folder '{located.root}' holds no .json or .json.gz file."
            )
        return dataclasses.replace(located, paths=paths)

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns all users' examples; clients are numbered in sorted order."""
        folders = [path.parent.name == "test" for path in located.paths]
        first, second = (
            leaf.read_leaf(itertools.compress(located.paths, chosen))
            for chosen in ([not is_test for is_test in folders], folders)
        )
        users = {
            user: tuple(
                a + b
                for a, b in zip(
                    first.get(user, ([], [])), second.get(user, ([], [])), strict=True
                )
            )
            for user in first | second
        }
        part = None
        if first and second and self.split == "given":
            sizes = [[len(p.get(u, ([],))[0]) for p in (first, second)] for u in users]
            parts = np.tile([datasets.TRAIN, datasets.TEST], len(users))
            part = np.repeat(parts, np.ravel(sizes))
        if not users:
            raise checks.InputError(
                f"The LEAF data in '{located.root}' hold no example."
            )
        place = f"of the LEAF data in '{located.root}'"
        x = datasets.as_array([row for inputs, _ in users.values() for row in inputs])
        y = datasets.as_array([row for _, targets in users.values() for row in targets])
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
            [user for user, (_, targets) in users.items() for _ in targets],
            name=user_arrays.stem(located.root),
            part=part,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFolder(_UserSource):
    """A folder of PNG, JPEG, WebP or BMP images, shown as numbers from 0 to 1.

    Examples, classes and clients are in the order of their names. Images are grey if
    all are and in three colors otherwise. If the folder has nothing but `train`, `test`
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
    """A table in a file: comma, semicolon or tab separated, with a header, in UTF-8.

    A column whose every value is a number is one feature, as is one of true and false.
    A column of text becomes one feature of zeros and ones for each of its texts in
    sorted order. Mixed columns, and missing or infinite values, are refused. With
    `text` an input is the ids of that column's tokens, and other columns are left out.

    Attributes:
      path: the file, plain or `.gz`; relative to the current directory or else to the
        data directory.
      label: column to predict.
      client: column that names each example's client, or None.
      split: column that names each example's part, `train`, `validation` or `test`, or
        None for a split that is drawn.
      task: `"classification"`; `"regression"`, whose targets are scaled by the training
        rows; or `"auto"`: classes if the label is text or whole numbers of at most 20
        different values, regression if some number has a fraction.
      scaling: of columns of numbers, over all rows: `"standard"` to mean 0 and variance
        1, `"minmax"` to [0, 1], or `"none"`. A constant column becomes 0.
      drop: columns to leave out.
      categories: columns of numbers that are codes and are treated as text.
      text: column of texts that a `tokenizer` cuts into tokens, or None.
      tokenizer: path of a `tokenizer.json`, `"minilm"` for that of `minilm`, or None.
      num_tokens: tokens of a text; longer ones are cut, shorter ones padded; None for
        those of the longest text.
    """

    label: str = ""
    client: str | None = None
    split: str | None = struct.static_field(default=None)
    task: Literal["auto", "classification", "regression"] = "auto"
    scaling: Literal["standard", "minmax", "none"] = "standard"
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    text: str | None = struct.static_field(default=None)
    tokenizer: str | None = struct.static_field(default=None)
    num_tokens: int | None = struct.static_field(default=None, at_least=1)
    name = "csv"

    def __post_init__(self):
        for field in ("drop", "categories"):
            value = _as_tuple(field, getattr(self, field), str, "('age', 'city')")
            object.__setattr__(self, field, value)
        super().__post_init__()
        columns = [self.label, self.client, self.split, self.text]
        columns += [*self.drop, *self.categories]
        for column in columns:
            if column and columns.count(column) > 1:
                raise checks.InputError(
                    f"Expected {column!r} once in label, client, split, text, drop and"
                    " categories."
                )

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
        path = tokens.find_tokenizer(self.tokenizer)
        return dataclasses.replace(located, paths=(*located.paths, path))

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x float32[S, F]`, or `int32[S, T]` for a text.

        Clients are numbered in the order of their names.
        """
        path = located.root
        owners = [name for name in (self.client, self.split) if name is not None]
        others = [self.label, *owners, *self.drop]
        texts = [] if self.text is None else [self.text]
        kept = [self.label, *owners, *self.categories, *texts]
        table = tables.read_table(path, kept)
        for column in (*others, *self.categories, *texts):
            checks.known(column, table.columns, f"column of '{path}'")
        names = [name for name in table.columns if name not in others]
        if not names:
            raise checks.InputError(
                f"The table '{path}' has no column left besides {', '.join(others)}."
            )
        if self.text is None:
            x = np.concatenate([_feature(table, name, self) for name in names], axis=1)
        else:  # as it stands, also an empty one or one that says "nan"
            texts = [str(value) for value in table.columns[self.text]]
            x = tokens.token_ids(texts, located.paths[-1], self.num_tokens)
        y, class_names = _targets(table, self)
        client = client_names = None
        if self.client is not None:
            texts = table.texts(self.client)
            names = user_arrays.in_order(texts)
            client, client_names = user_arrays.numbered(texts, names)
        part = None
        if self.split is not None:
            where = f"the column {self.split!r} of '{path}'"
            part = _parts(table.texts(self.split), where)
        return datasets.Dataset(
            name=user_arrays.stem(path),
            part=part,
            x=x,
            y=y,
            class_names=class_names,
            client=client,
            client_names=client_names,
            scale_targets=class_names is None,
        )


def _parts(words: Sequence[Any], where: str) -> np.ndarray:
    """Returns the parts `int8[S]` of a given split, from their names."""
    names = [str(word).strip().casefold() for word in words]
    if wrong := sorted(set(names) - datasets.PARTS.keys()):
        raise checks.InputError(
            f"Expected train, validation or test in {where}, got {wrong[0]!r}."
        )
    return np.array([datasets.PARTS[name] for name in names], np.int8)


def _setting(field: str, value: Any) -> str:
    """Returns how a field of the user's own data is set."""
    return checks.setting(f"federation.dataset.{field}", value)


def _feature(table: tables.Table, name: str, options: Csv) -> np.ndarray:
    """Returns `float32[S, 1]` for numbers or `float32[S, categories]` for text."""
    if name in options.categories:
        return _one_hot(table, name)
    categories, drop = (_setting(field, (name,)) for field in ("categories", "drop"))
    numbers = table.numbers(name, f"list the column in {categories} or {drop}")
    if numbers is None:
        texts = [text.casefold() for text in table.texts(name)]
        if not set(texts) <= {"true", "false"}:
            return _one_hot(table, name)
        numbers = (np.array(texts) == "true").astype(np.float64)
    return _scaled(numbers, options.scaling).astype(np.float32)[:, None]


def _one_hot(table: tables.Table, name: str) -> np.ndarray:
    """Returns zeros and ones `float32[S, categories]`, categories in sorted order."""
    texts = table.texts(name)
    categories = sorted(set(texts))
    if len(categories) > _MAX_CATEGORIES:
        raise checks.InputError(
            f"Column {name!r} of '{table.path}' holds {len(categories)} texts,"
            f" expected at most {_MAX_CATEGORIES}; leave it out with"
            f" {_setting('drop', (name,))}, or give it a tokenizer with"
            f" {_setting('text', name)}."
        )
    codes, _ = user_arrays.numbered(texts, categories)
    return np.eye(len(categories), dtype=np.float32)[codes]


def _scaled(numbers: np.ndarray, scaling: str) -> np.ndarray:
    """Scales numbers `float64[S]` as the option `scaling` says."""
    low, high = numbers.min(), numbers.max()
    if scaling == "none":
        return numbers
    if low == high:  # rounding would leave a constant column at +-1 or NaN
        return np.zeros_like(numbers)
    if scaling == "minmax":
        return (numbers - low) / (high - low)
    centered = numbers - numbers.mean()
    centered /= np.abs(centered).max()  # the squares of tiny numbers would be 0
    return centered / np.sqrt(np.mean(centered**2))


def _targets(
    table: tables.Table, options: Csv
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Returns the targets `[S]` and, for classes, their names."""
    texts = table.texts(options.label)
    if options.task == "classification":
        numbers = tables.parse_numbers(texts)
    else:
        classification = _setting("task", "classification")
        numbers = table.numbers(options.label, f"pass {classification}")
        if numbers is None and options.task == "regression":
            raise checks.InputError(
                f"Expected numbers as the label of '{table.path}', got {texts[0]!r}."
            )
    if numbers is not None:
        is_whole = (numbers == np.round(numbers)).all()
        distinct = len(np.unique(numbers))
        if options.task == "auto" and is_whole and distinct > _MAX_CLASSES:
            raise checks.InputError(
                f"The label {options.label!r} of '{table.path}' holds {distinct}"
                " different whole numbers: say whether they are amounts, with"
                f" {_setting('task', 'regression')}, or classes, with"
                f" {_setting('task', 'classification')}."
            )
        if options.task == "regression" or (options.task == "auto" and not is_whole):
            return numbers, None
        row = int(np.abs(numbers).argmax())
        if abs(numbers[row]) >= _TOO_LARGE:
            raise checks.InputError(
                f"The label of '{table.path}' holds {texts[row]}, too large to be"
                f" exact; write text, or pass {_setting('task', 'regression')}."
            )
        texts = [int(n) if n.is_integer() else n for n in numbers.tolist()]
    return user_arrays.encode_classes(
        texts, f"the label {options.label!r} of '{table.path}'"
    )


def _as_path(value: Any) -> str:
    """Converts the option `path`, text or a path object, to text."""
    checks.path("path", value)
    return str(value)


def _as_tuple(name: str, value: Any, kind: type, example: str) -> tuple[Any, ...]:
    """Converts an option that is a list of items of a kind to a tuple, for hashing."""
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, kind) for item in value
    ):
        raise checks.InputError(
            f"Expected {name} to be a list such as {example}, got"
            f" {checks.shown(value)}."
        )
    return tuple(value)


def _as_sizes(name: str, value: Any) -> tuple[int, ...]:
    """Converts an option that is a list of sizes, whole numbers of at least 1."""
    sizes = _as_tuple(name, value, numbers.Integral, "(28, 28)")
    for size in sizes:
        checks.positive_int(f"each number of {name}", size)
    return tuple(map(int, sizes))


def _locate(path: str, data_dir: str | None) -> pathlib.Path:
    """Finds a user's file or folder; returns its absolute path.

    A relative path counts from the current directory or else from the data directory:
    `data_dir`, or the environment's.
    """
    if not path:
        raise checks.InputError(
            "Expected path to name the file or folder of the data, got ''."
        )
    relative = pathlib.Path(os.path.expanduser(path))  # pathlib's refuses a wrong user
    candidates = [relative.absolute()]
    directory = data_dir or os.environ.get(base.DATA_DIR_VARIABLE)
    # With ".." the path would lead out of the data directory.
    if directory and not relative.is_absolute() and ".." not in relative.parts:
        root = pathlib.Path(os.path.expanduser(directory))
        candidates.append(root.absolute() / relative)
    try:
        for candidate in candidates:
            if candidate.exists():
                return candidate
    except OSError as error:  # too long, or no permission
        raise checks.InputError(f"The path {path!r} cannot be looked up.") from error
    places = " or ".join(repr(str(candidate)) for candidate in candidates)
    raise checks.InputError(f"There is no file or folder {places}.")


def _json_files(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Finds the files `.json` and `.json.gz` in a folder and the folders below it.

    A file that is there twice, plain and compressed, counts once, plain. The order is
    that of the names, those in folders called `test` last.
    """
    with files.readable(f"The folder '{folder}'"):
        paths = files.find_files(folder, "**/*.json")
        paths = [path for path in paths if not path.name.startswith(".")]
        root = os.path.realpath(folder)
        for path in paths:
            files.check_inside(path, root)
    return tuple(sorted(paths, key=lambda path: path.parent.name == "test"))
