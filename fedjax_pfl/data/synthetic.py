"""Generated federations with known solutions.

Clients are natural (`Dataset.client`, to be used with `ByClient`); everything is a
function of the options, the number of clients and the seed. `Dataset.truth` holds
float64 arrays that refer to all stored float32 examples: if a client's minimizer
matters, split with `test_fraction=0` and `validation_fraction=0`, or generate data
without noise.
"""

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets

__all__ = [
    "ClusteredClasses",
    "GaussianClasses",
    "Generated",
    "LinearRegression",
    "Quadratic",
    "require_memory",
    "rounded",
]

_COPIES = 4  # of the examples while they are drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generated(abc.ABC):
    """Base class of sources that draw their examples."""

    name: ClassVar[str]

    __post_init__ = struct.check_fields

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Draws the data set, once per seed and number of clients."""
        if num_clients is None:
            raise checks.InputError(
                f"Data set {self.name!r} is generated for a number of clients: expected"
                " num_clients, got None."
            )
        require_memory(self.name, num_clients, self.count_numbers(num_clients))
        return _generate(self, seed, num_clients)

    @abc.abstractmethod
    def count_numbers(self, num_clients: int) -> int:
        """Counts the numbers that are drawn or computed, at least."""

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, num_clients: int) -> datasets.Dataset:
        """Draws the data set from a generator."""


@datasets.cache(64)
def _generate(source: Generated, seed: int, num_clients: int) -> datasets.Dataset:
    """Draws a data set, which specifications that differ elsewhere share."""
    return source.draw(datasets.generator(seed, datasets.Purpose.DATASET), num_clients)


def require_memory(name: str, num_clients: int, count: int) -> None:
    """Checks that `count` numbers fit into memory, before they are drawn."""
    checks.memory(
        f"Data set {name!r} of {num_clients} clients",
        _COPIES * 8 * count,
        "generate fewer clients, or fewer or smaller examples",
    )


def rounded(values: np.ndarray) -> np.ndarray:
    """Rounds to float32, the stored precision, in float64."""
    largest = np.abs(values).max()
    if not largest <= np.finfo(np.float32).max:
        raise checks.InputError(
            "Expected generated values that fit into 32 bits, got one of size"
            f" {largest:g}; use smaller options."
        )
    return values.astype(np.float32).astype(np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quadratic(Generated):
    """Points around one target per client, for the loss `b/2 |theta - x|^2`.

    Examples are `t_i + noise * z`, in `x` and in `y`, with `t_i ~ N(0, spread^2 I)`.
    Truth: `parameters [N, dim]` (the `t_i`) and `minimizers [N, dim]` (each client's
    mean).

    Attributes:
      dim: dimension of the points.
      examples_per_client: points of each client.
      spread: standard deviation of the targets.
      noise: standard deviation of a client's points.
    """

    dim: int = struct.static_field(default=3, at_least=1)
    examples_per_client: int = struct.static_field(default=10, at_least=1)
    spread: float = struct.static_field(default=1.0, at_least=0)
    noise: float = struct.static_field(default=0.0, at_least=0)
    name = "quadratic"

    def count_numbers(self, num_clients: int) -> int:
        """Counts the numbers that are drawn or computed."""
        return num_clients * self.dim * self.examples_per_client

    def draw(self, rng: np.random.Generator, num_clients: int) -> datasets.Dataset:
        """Draws targets, then points."""
        targets = self.spread * rng.standard_normal((num_clients, self.dim))
        shape = (num_clients, self.examples_per_client, self.dim)
        points = targets[:, None] + self.noise * rng.standard_normal(shape)
        x = rounded(points)
        return datasets.Dataset(
            name=self.name,
            x=x.reshape(-1, self.dim),
            y=x.reshape(-1, self.dim),
            client=datasets.owners([self.examples_per_client] * num_clients),
            truth={"parameters": targets, "minimizers": x.mean(axis=1)},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearRegression(Generated):
    """Linear regression `y = X_i t_i + z`, for the loss `1/(2n) |X_i theta - y|^2`.

    Truth: `parameters [N, dim]` (the `t_i ~ N(0, spread^2 I)`), `minimizers [N, dim]`
    (least squares of each client) and `hessians [N, dim, dim]` (`A_i = X_i^T X_i / n`).

    Attributes:
      dim: number of features.
      examples_per_client: rows of each design, at least `dim`.
      spread: standard deviation of the parameters.
      sigma: standard deviation of the noise.
      curvature: `b`; the Hessian is `b I`, to rounding if `orthonormal`, else in
        expectation.
      orthonormal: orthonormalize the designs.
    """

    dim: int = struct.static_field(default=5, at_least=1)
    examples_per_client: int = 50
    spread: float = struct.static_field(default=1.0, at_least=0)
    sigma: float = struct.static_field(default=0.1, at_least=0)
    curvature: float = struct.static_field(default=1.0, at_least=1e-30)
    orthonormal: bool = True
    name = "linear_regression"

    def __post_init__(self):
        super().__post_init__()
        checks.whole("examples_per_client", self.examples_per_client, at_least=self.dim)

    def count_numbers(self, num_clients: int) -> int:
        """Counts the numbers that are drawn or computed."""
        return num_clients * self.dim * (self.examples_per_client + self.dim)

    def draw(self, rng: np.random.Generator, num_clients: int) -> datasets.Dataset:
        """Draws parameters, designs, then noise."""
        num_rows = self.examples_per_client
        parameters = self.spread * rng.standard_normal((num_clients, self.dim))
        designs = rng.standard_normal((num_clients, num_rows, self.dim))
        if self.orthonormal:
            designs = np.linalg.qr(designs).Q * np.sqrt(num_rows)
        x = rounded(np.sqrt(self.curvature) * designs)
        noise = self.sigma * rng.standard_normal((num_clients, num_rows))
        y = rounded(np.einsum("ind,id->in", x, parameters) + noise)
        # Truth is computed from the rounded examples that clients have.
        hessians = np.einsum("ind,ine->ide", x, x) / num_rows
        moments = np.einsum("ind,in->id", x, y) / num_rows
        return datasets.Dataset(
            name=self.name,
            x=x.reshape(-1, self.dim),
            y=y.reshape(-1),
            client=datasets.owners([num_rows] * num_clients),
            truth={
                "parameters": parameters,
                "minimizers": np.linalg.solve(hessians, moments[..., None])[..., 0],
                "hessians": hessians,
            },
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mixture(Generated):
    """A mixture of unit Gaussians, one per class; see the subclasses for the fields."""

    num_classes: int = struct.static_field(default=4, at_least=1)
    dim: int = struct.static_field(default=2, at_least=1)
    examples_per_client: int = struct.static_field(default=50, at_least=1)
    separation: float = struct.static_field(default=3.0, at_least=0)

    def count_numbers(self, num_clients: int) -> int:
        """Counts the numbers that are drawn or computed."""
        return num_clients * self.dim * (self.examples_per_client + self.num_classes)

    def draw_means(self, rng: np.random.Generator) -> np.ndarray:
        """Draws the means `[num_classes, dim]` of the components."""
        return self.separation * rng.standard_normal((self.num_classes, self.dim))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianClasses(_Mixture):
    """A mixture of unit Gaussians, one per class, moved by a shift of each client.

    Truth: `means [N, num_classes, dim]`; labels are uniform, so the best classifier of
    a client picks the nearest of its means.

    Attributes:
      num_classes: number of classes.
      dim: dimension of the inputs.
      examples_per_client: examples of each client.
      separation: standard deviation of the class means.
      shift: standard deviation of the clients' shifts.
    """

    shift: float = struct.static_field(default=1.0, at_least=0)
    name = "gaussian_classes"

    def draw(self, rng: np.random.Generator, num_clients: int) -> datasets.Dataset:
        """Draws class means, shifts, labels, then inputs."""
        means = self.draw_means(rng)
        means = means + self.shift * rng.standard_normal((num_clients, 1, self.dim))
        client = datasets.owners([self.examples_per_client] * num_clients)
        y = rng.integers(self.num_classes, size=len(client))
        x = means[client, y] + rng.standard_normal((len(client), self.dim))
        return datasets.Dataset(
            name=self.name,
            x=x,
            y=y,
            num_classes=self.num_classes,
            client=client,
            truth={"means": means},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusteredClasses(_Mixture):
    """Clusters of clients with the same inputs and contradictory labels.

    All clients draw inputs from one mixture of unit Gaussians; clients of cluster k
    label component c as class `(c + k) mod C`. So a client benefits from its own
    cluster and is harmed by every other. Client i is in cluster `i mod num_clusters`.
    Truth: `means [num_classes, dim]`, `clusters [N]`.

    Attributes:
      num_clusters: at most the number of classes.
      num_classes: number of classes C.
      dim: dimension of the inputs.
      examples_per_client: examples of each client.
      separation: standard deviation of the components' means.
    """

    num_clusters: int = struct.static_field(default=4, at_least=1)
    dim: int = struct.static_field(default=10, at_least=1)
    examples_per_client: int = struct.static_field(default=20, at_least=1)
    separation: float = struct.static_field(default=1.0, at_least=0)
    name = "clustered_classes"

    def __post_init__(self):
        super().__post_init__()
        checks.whole("num_classes", self.num_classes, at_least=self.num_clusters)

    def draw(self, rng: np.random.Generator, num_clients: int) -> datasets.Dataset:
        """Draws means, components, then inputs."""
        means = self.draw_means(rng)
        clusters = np.arange(num_clients) % self.num_clusters
        client = datasets.owners([self.examples_per_client] * num_clients)
        component = rng.integers(self.num_classes, size=len(client))
        x = means[component] + rng.standard_normal((len(client), self.dim))
        return datasets.Dataset(
            name=self.name,
            x=x,
            y=(component + clusters[client]) % self.num_classes,
            num_classes=self.num_classes,
            client=client,
            cluster=clusters,
            truth={"means": means, "clusters": clusters},
        )
