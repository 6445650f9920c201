"""Generators of a party's further years of prices from its own training prices.

A generated year is a pure function of seed, client and year: the fit has a random
generator per client, and every year has one of its own.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct

__all__ = [
    "GENERATORS",
    "Generator",
    "GeometricBrownianMotion",
    "Sampler",
    "VariableOrderMarkov",
    "WassersteinGAN",
]

Sampler = Callable[[Sequence[np.random.Generator], int], np.ndarray]
"""`(rngs of P years, days) -> float64[P, days, m]` log-returns."""

_MAX_CONTEXTS = 100_000
_CALIBRATION = 2000  # windows that measure mean and standard deviation
_COMMON_DAYS = 252  # with fewer, days before a listing count as returns of 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generator(abc.ABC):
    """Generator of daily log-returns: a frozen dataclass of named options."""

    name: ClassVar[str]

    __post_init__ = struct.check_fields

    @abc.abstractmethod
    def fit(
        self, rngs: Sequence[np.random.Generator], histories: Sequence[np.ndarray]
    ) -> list[Sampler]:
        """Fits one sampler per party, which must not depend on the other parties.

        Args:
          rngs: one random generator per party, for the fit alone.
          histories: `float64[R-1, m]` daily log-returns of each party's training
            prices; NaN before an asset's first day, at least two numbers per asset.
        """


class _Deterministic(Generator):
    """Base class of generators with a deterministic fit, one party at a time."""

    def fit(
        self, rngs: Sequence[np.random.Generator], histories: Sequence[np.ndarray]
    ) -> list[Sampler]:
        """Fits one sampler per party, without random numbers."""
        return [self.fit_one(history) for history in histories]

    @abc.abstractmethod
    def fit_one(self, returns: np.ndarray) -> Sampler:
        """Fits the sampler of one party to its returns `float64[R-1, m]`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeometricBrownianMotion(_Deterministic):
    """Normal log-returns with each asset's mean and standard deviation.

    `v_{t+1} = v_t exp(m + s eps)`: m is the mean of log-returns, which needs no
    correction by `s^2 / 2`.

    Attributes:
      correlated: use the correlations of the days on which all assets are listed,
        instead of independent assets.
    """

    correlated: bool = False
    name = "gbm"

    def fit_one(self, returns: np.ndarray) -> Sampler:
        """Estimates the moments."""
        mean = np.nanmean(returns, axis=0)
        factor = np.diag(np.nanstd(returns, axis=0, ddof=1))
        if self.correlated:
            factor = factor @ _root_of_correlation(returns)

        def sample(rngs: Sequence[np.random.Generator], days: int) -> np.ndarray:
            noise = [rng.standard_normal((days, len(mean))) for rng in rngs]
            # m is the mean of log-returns: no correction by s^2 / 2.
            return mean + np.stack(noise) @ factor.T

        return sample


def _root_of_correlation(returns: np.ndarray) -> np.ndarray:
    """Returns `C` with `C C^T` the correlation of the common days, or the identity."""
    common = returns[~np.isnan(returns).any(axis=1)]
    size = returns.shape[1]
    if len(common) < 2:
        return np.eye(size)
    centered = common - common.mean(axis=0)
    # Of the days on which all assets are listed: the matrix is semidefinite.
    norms = np.sqrt((centered**2).sum(axis=0))
    centered = centered / np.where(norms > 0, norms, 1)
    correlation = centered.T @ centered
    np.fill_diagonal(correlation, 1.0)  # also of an asset with a constant price
    values, vectors = np.linalg.eigh(correlation)
    return vectors * np.sqrt(np.maximum(values, 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableOrderMarkov(_Deterministic):
    """Markov chain of binned returns of variable order, with back-off.

    Every asset has quantile bins of its returns, counts of the bin that follows each
    context of 0 to `order` bins, and a path of its own: the longest context that was
    followed by something at least `min_count` times gives the next bin, and one of the
    historical returns of this bin is the return. A path begins after the last training
    days.

    Attributes:
      bins: quantile bins, at least 2. Of many equal returns some bins are empty.
      order: bins of the longest context.
      min_count: times that a context must have been seen; the empty one always counts.
    """

    bins: int = struct.static_field(default=5, at_least=2, at_most=1000)
    order: int = struct.static_field(default=3, at_least=0, at_most=16)
    min_count: int = struct.static_field(default=5, at_least=1)
    name = "markov"

    def __post_init__(self):
        super().__post_init__()
        if self.bins**self.order > _MAX_CONTEXTS:
            raise checks.InputError(
                f"Expected at most {_MAX_CONTEXTS:,} contexts, got bins ** order ="
                f" {self.bins} ** {self.order}."
            )

    def fit_one(self, returns: np.ndarray) -> Sampler:
        """Counts the transitions."""
        chains = [self._chain(row[~np.isnan(row)]) for row in returns.T]
        every_values, every_starts, every_law, every_last = zip(*chains, strict=True)
        length = max(map(len, every_values))
        values = np.stack([np.pad(row, (0, length - len(row))) for row in every_values])
        starts, law, last = map(np.stack, (every_starts, every_law, every_last))
        asset, contexts = np.arange(len(chains)), self.bins**self.order

        def sample(rngs: Sequence[np.random.Generator], days: int) -> np.ndarray:
            uniform = np.stack([rng.random((days, 2, len(chains))) for rng in rngs])
            context = np.tile(last, (len(rngs), 1))
            path = np.empty((len(rngs), days, len(chains)))
            for day in range(days):
                which, within = uniform[:, day, 0], uniform[:, day, 1]
                number = (which[..., None] >= law[asset, context]).sum(axis=-1)
                begin, end = starts[asset, number], starts[asset, number + 1]
                place = begin + (within * (end - begin)).astype(np.int64)
                path[:, day] = values[asset, place]
                context = (context * self.bins + number) % contexts
            return path

        return sample

    def _chain(
        self, returns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Returns an asset's sorted values, starts of bins, law, and last context."""
        edges = np.quantile(returns, np.arange(1, self.bins) / self.bins)
        binned = np.searchsorted(edges, returns, side="right")
        values = np.sort(returns)
        inner = np.searchsorted(values, edges, side="left")
        law = np.bincount(binned, minlength=self.bins)[None].astype(float)
        context = np.zeros(len(binned), np.int64)
        for order in range(1, self.order + 1):
            # Code of the `order` bins before each day.
            older = np.concatenate([np.zeros(order, np.int64), binned])[: len(binned)]
            context = context + older * self.bins ** (order - 1)
            cell = (context * self.bins + binned)[order:]
            shape = (self.bins**order, self.bins)
            counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
            # Back-off: a rare context has the law of the one that is a bin shorter.
            is_frequent = counts.sum(axis=1, keepdims=True) >= self.min_count
            shorter = np.tile(law, (self.bins, 1))  # of the context's later bins
            law = np.where(is_frequent, counts, shorter)
        cumulative = np.cumsum(law, axis=1) / law.sum(axis=1, keepdims=True)
        last = 0
        for number in binned[max(len(binned) - self.order, 0) :].tolist():
            last = last * self.bins + number
        starts = np.concatenate([[0], inner, [len(values)]])
        # Without the last entry, which is 1: rounding must not lead beyond it.
        return values, starts, cumulative[:, :-1], last


@dataclasses.dataclass(frozen=True, kw_only=True)
class WassersteinGAN(Generator):
    """Windows of returns by a Wasserstein GAN with gradient penalty.

    The federated paper names such a generator without its architecture; this is a
    reconstruction: a Wasserstein GAN with gradient penalty (Gulrajani et al.) on
    windows of `block` successive standardized log-returns of all assets of the party,
    so that their correlations are learned too. Generator and critic are perceptrons of
    two hidden layers. Successive windows of a generated year are independent. After
    training, mean and standard deviation of each asset are corrected, because a small
    bias of daily returns is a large bias of yearly ones.

    Training takes about a second per party on one core, and is the same for the same
    seed, backend and versions. On the synthetic market, correlations of nine assets
    come out within 0.05 on average; tails do not: a kurtosis of 12 becomes 4.

    Attributes:
      block: days of a window; fewer if there are fewer training days.
      latent: dimension of the noise that a window is made from.
      width: of the hidden layers.
      num_steps: steps of the generator.
      critic_steps: steps of the critic before each of these.
      batch_size: windows per step.
      learning_rate: of Adam (0.5, 0.9), for both.
      penalty: weight of the gradient penalty.
    """

    block: int = struct.static_field(default=30, at_least=1, at_most=10_000)
    latent: int = struct.static_field(default=16, at_least=1)
    width: int = struct.static_field(default=64, at_least=1)
    num_steps: int = struct.static_field(default=400, at_least=1)
    critic_steps: int = struct.static_field(default=3, at_least=1)
    batch_size: int = struct.static_field(default=32, at_least=1)
    learning_rate: float = struct.static_field(default=5e-4, above=0)
    penalty: float = struct.static_field(default=10.0, at_least=0)
    name = "gan"

    def fit(
        self, rngs: Sequence[np.random.Generator], histories: Sequence[np.ndarray]
    ) -> list[Sampler]:
        """Trains the networks of all parties in one compiled program."""
        if not histories:
            return []
        mean = np.stack([np.nanmean(returns, axis=0) for returns in histories])
        std = np.stack([np.nanstd(returns, axis=0) for returns in histories])
        # An asset that never moves keeps the value 0.
        scale = np.where(std > 0, std, 1)[:, None]
        standard = (np.stack(histories) - mean[:, None]) / scale
        first_days = [_first_common_day(returns) for returns in histories]
        # A key per party: its network does not depend on the other parties.
        keys = [core.seed_key(int(rng.integers(2**32))) for rng in rngs]
        block = min(self.block, standard.shape[1])
        parameters = lax.map(
            lambda party: self._train(block, *party),
            (
                jnp.stack(keys),
                jnp.asarray(np.nan_to_num(standard), jnp.float32),
                jnp.asarray(first_days, jnp.int32),
            ),
        )
        parameters = jax.tree.map(lambda x: np.asarray(x, np.float64), parameters)
        samplers = []
        # A small bias of daily returns is a large one of yearly returns: mean and
        # deviation are measured on samples and corrected.
        for party, rng in enumerate(rngs):
            layers = jax.tree.map(lambda leaf, k=party: leaf[k], parameters)
            sample = _sampler(layers, block, self.latent)
            returns = sample([rng], _CALIBRATION * block)[0]
            spread = returns.std(axis=0)
            factor = std[party] / np.where(spread > 0, spread, 1)
            shift = mean[party] - factor * returns.mean(axis=0)
            samplers.append(_sampler(layers, block, self.latent, shift, factor))
        return samplers

    def _train(
        self, block: int, key: core.Key, returns: jax.Array, first_day: jax.Array
    ) -> core.Tree:
        """Trains one party's generator; `returns` is `float32[R-1, m]`."""
        size = block * returns.shape[1]
        generator_key, critic_key, key = jax.random.split(key, 3)
        sizes = (self.width, self.width)
        generator = _layers(generator_key, (self.latent, *sizes, size))
        critic = _layers(critic_key, (size, *sizes, 1))
        optimizer = optax.adam(self.learning_rate, b1=0.5, b2=0.9)
        last_day = returns.shape[0] - block

        def noise(key: jax.Array) -> jax.Array:
            shape = (self.batch_size, self.latent)
            return jax.random.normal(key, shape, jnp.float32)

        def real(key: jax.Array) -> jax.Array:
            # Windows begin when all assets are listed, if enough days are left.
            starts = jnp.minimum(first_day, last_day)
            starts = jax.random.randint(key, (self.batch_size,), starts, last_day + 1)
            days = starts[:, None] + jnp.arange(block)[None]
            return returns[days].reshape(self.batch_size, size)

        def criticize(
            critic: core.Params, generator: core.Params, key: jax.Array
        ) -> jax.Array:
            keys = jax.random.split(key, 3)
            true, fake = real(keys[0]), _run(generator, noise(keys[1]))
            share = jax.random.uniform(keys[2], (self.batch_size, 1), jnp.float32)
            between = share * true + (1 - share) * fake
            slope = jax.grad(lambda x: _run(critic, x).sum())(between)
            # Without the constant the derivative at a slope of 0 would be NaN.
            length = jnp.sqrt((slope**2).sum(axis=1) + 1e-12)
            distance = _run(critic, true).mean() - _run(critic, fake).mean()
            return self.penalty * ((length - 1) ** 2).mean() - distance

        def deceive(
            generator: core.Params, critic: core.Params, key: jax.Array
        ) -> jax.Array:
            return -_run(critic, _run(generator, noise(key))).mean()

        def step(
            loss: Callable[..., jax.Array],
            params: core.Params,
            state: core.Tree,
            rival: core.Params,
            key: jax.Array,
        ) -> tuple[core.Params, core.Tree]:
            gradient = jax.grad(loss)(params, rival, key)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        def train_step(carry: core.Tree, key: jax.Array) -> tuple[Any, None]:
            generator, critic, states = carry
            keys = jax.random.split(key, self.critic_steps + 1)

            # Several steps of the critic for one of the generator.
            def once(carry: core.Tree, key: jax.Array) -> tuple[Any, None]:
                return step(criticize, carry[0], carry[1], generator, key), None

            (critic, critic_state), _ = lax.scan(once, (critic, states[1]), keys[1:])
            generator, state = step(deceive, generator, states[0], critic, keys[0])
            return (generator, critic, (state, critic_state)), None

        states = (optimizer.init(generator), optimizer.init(critic))
        keys = jax.random.split(key, self.num_steps)
        (generator, _, _), _ = lax.scan(train_step, (generator, critic, states), keys)
        return generator


def _sampler(
    layers: core.Params,
    block: int,
    latent: int,
    mean: np.ndarray | float = 0.0,
    factor: np.ndarray | float = 1.0,
) -> Sampler:
    """Returns a sampler of successive windows of a trained network, corrected."""

    def sample(rngs: Sequence[np.random.Generator], days: int) -> np.ndarray:
        count = math.ceil(days / block)
        x = np.stack([rng.standard_normal((count, latent)) for rng in rngs])
        for number, (kernel, bias) in enumerate(layers):
            x = x if number == 0 else np.where(x > 0, x, 0.2 * x)
            x = x @ kernel + bias
        return mean + factor * x.reshape(len(rngs), count * block, -1)[:, :days]

    return sample


def _first_common_day(returns: np.ndarray) -> int:
    """Returns the first day with all assets listed, or an earlier one for more days."""
    common = int((~np.isnan(returns).any(axis=1)).argmax())
    return min(common, max(len(returns) - _COMMON_DAYS, 0))


def _layers(key: jax.Array, sizes: Sequence[int]) -> list[tuple[jax.Array, jax.Array]]:
    """Draws kernels and biases of a perceptron by He's initialization."""
    layers = []
    for fan_in, fan_out in zip(sizes[:-1], sizes[1:], strict=True):
        key, layer_key = jax.random.split(key)
        kernel = jax.random.normal(layer_key, (fan_in, fan_out), jnp.float32)
        bias = jnp.zeros(fan_out, jnp.float32)
        layers.append((kernel * math.sqrt(2 / fan_in), bias))
    return layers


def _run(layers: core.Params, x: jax.Array) -> jax.Array:
    """Applies a perceptron with leaky rectifiers."""
    for number, (kernel, bias) in enumerate(layers):
        x = x if number == 0 else jax.nn.leaky_relu(x, 0.2)
        x = x @ kernel + bias[None]
    return x


GENERATORS: dict[str, type[Generator]] = {
    kind.name: kind
    for kind in (GeometricBrownianMotion, VariableOrderMarkov, WassersteinGAN)
}
