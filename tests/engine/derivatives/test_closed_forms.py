"""Derivatives on quadratics, whose rounds are affine maps that NumPy repeats.

The rounds are written from the papers' equations, and differentiated by complex steps:
an analytic function at `x + i h` has the derivative `Im f / h`, without a difference.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.results import learned
from tests import problems
from tests.lanes import few

KEY = jax.random.key(0, impl="threefry2x32")
PROBLEM = problems.regressions()
NUM_CLIENTS, DIM = PROBLEM.estimates.shape
STEPS, NUM_ROUNDS = 3, 4
SGD = problems.full_gradient_steps(STEPS, 0.1, momentum=0.4)
RTOL = np.finfo(float).eps ** 0.5  # half of the digits, of which rounding takes few

Models = dict[str, np.ndarray]


def descend(client, start, center, weight, learning_rate, momentum):
    """Local steps of one client on `f + weight/2 |. - center|^2`."""
    return PROBLEM.descend(
        client, start, center, weight, STEPS, learning_rate, momentum
    )


def everyone(local: Callable[[int], np.ndarray]) -> np.ndarray:
    return np.stack([local(client) for client in range(NUM_CLIENTS)])


def fedavg(rounds: int, **local: Any) -> Models:
    alpha, w = PROBLEM.alpha("examples"), np.zeros(DIM)
    for _ in range(rounds):
        w = alpha @ everyone(lambda i, w=w: descend(i, w, w, 0, **local))
    return {"global": w}


def ditto(rounds: int, *, lam: Any, **local: Any) -> Models:
    """The anchor of a round is what FedAvg sends in it."""
    v = np.zeros((NUM_CLIENTS, DIM))
    for done in range(rounds):
        w = fedavg(done, **local)["global"]
        v = everyone(lambda i, v=v, w=w: descend(i, v[i], w, lam, **local))
    return {"global": fedavg(rounds, **local)["global"], "personal": v}


def pfedme(
    rounds: int,
    *,
    lam: Any,
    learning_rate: Any,
    inner_learning_rate: Any,
    server_learning_rate: Any,
) -> Models:
    """Algorithm 1, with full batches: two steps of w_i, of three inner ones each."""
    alpha, w, theta = PROBLEM.alpha("examples"), np.zeros(DIM), np.zeros((5, DIM))
    for _ in range(rounds):
        w_local = np.tile(w, (NUM_CLIENTS, 1))
        for _ in range(2):
            for _ in range(3):
                slope = PROBLEM.gradients(theta) + lam * (theta - w_local)
                theta = theta - inner_learning_rate * slope
            w_local = w_local - learning_rate * lam * (w_local - theta)
        mean = alpha @ w_local
        w = (1 - server_learning_rate) * w + server_learning_rate * mean
    return {"global": w, "personal": theta}


def flame(
    rounds: int,
    *,
    lam: Any,
    kappa: Any = None,
    rho: Any = None,
    center: str = "local",
    weighting: str = "uniform",
    **local: Any,
) -> Models:
    """Equations (11) to (14), scaled, one dual step a round."""
    alpha = PROBLEM.alpha(weighting)
    ratio = rho / (lam * alpha) if kappa is None else kappa / (NUM_CLIENTS * alpha)
    ratio = ratio[:, None]
    w = np.zeros(DIM)
    theta = w_local = p = np.zeros((NUM_CLIENTS, DIM))
    for _ in range(rounds):
        centers = {"local": w_local, "received": w + 0 * p, "joint": w - p}[center]
        pull = lam * ratio / (1 + ratio) if center == "joint" else lam + 0 * ratio
        start = theta
        theta = everyone(
            lambda i, a=start, b=centers, c=pull: descend(i, a[i], b[i], c[i], **local)
        )
        w_local = (theta + ratio * (w - p)) / (1 + ratio)
        p = p + w_local - w
        w = (w_local + p).mean(axis=0)
    return {"global": w, "personal": theta}


def released_flame(
    rounds: int, *, lam: Any, kappa: Any, learning_rate: Any, momentum: Any
) -> Models:
    """The authors' code: the dual moves after every step, the first center is w."""
    w = np.zeros(DIM)
    theta = p = np.zeros((NUM_CLIENTS, DIM))
    for _ in range(rounds):
        center, memory = np.tile(w, (NUM_CLIENTS, 1)), np.zeros_like(theta)
        for _ in range(STEPS):
            slope = PROBLEM.gradients(theta) + lam * (theta - center)
            memory = momentum * memory + slope
            theta = theta - learning_rate * memory
            center = (theta + kappa * (w - p)) / (1 + kappa)
            p = p + center - w
        w = (center + p).mean(axis=0)
    return {"global": w, "personal": theta}


def length(x: np.ndarray) -> np.ndarray:
    """Norms of rows, analytic; one where a row is 0, whose prox is 0 anyway."""
    square = (x * x).sum(axis=-1, keepdims=True)
    return np.sqrt(np.where(square == 0, 1, square)) * np.where(square == 0, 0, 1)


def prox(phi: str, x: np.ndarray, rho: Any) -> np.ndarray:
    """The table of section 2.1; branches by the real parts."""
    if phi == "sq":
        return x / (1 + rho)
    size = length(x) if phi == "l2" else np.where(x.real < 0, -x, x)
    is_outside = size.real > np.real(rho)
    kept = 1 - rho / np.where(is_outside, size, 1)
    return np.where(is_outside, kept, 0) * x


def center(phi: str, rows: np.ndarray, rho: Any) -> np.ndarray:
    """Where `sum_k (x_k - c) / max(|x_k - c|, rho)` is 0, by a fixed point."""
    c = rows.mean(axis=0)
    for _ in range(0 if phi == "sq" else 500):
        away = rows - c
        size = length(away) if phi == "l2" else np.where(away.real < 0, -away, away)
        eta = 1 / np.where(size.real > np.real(rho), size, rho)
        c = c + (eta * away).sum(axis=0) / eta.sum(axis=0)
    return c


def fedplus(
    rounds: int, *, phi: str, alpha: Any, rho: Any, lam: Any, learning_rate: Any
) -> Models:
    """Algorithm 1, with the center of all members' models."""
    share = 1 / (1 + alpha * learning_rate)
    c, w = np.zeros(DIM), np.zeros((NUM_CLIENTS, DIM))
    for _ in range(rounds):
        z = c + prox(phi, w - c, rho)
        w = (1 - lam) * w + lam * c
        for _ in range(STEPS):
            w = share * (w - learning_rate * PROBLEM.gradients(w)) + (1 - share) * z
        c = center(phi, w, rho)
    return {"global": c, "personal": w}


@dataclasses.dataclass(frozen=True)
class Case:
    """A method, its rounds in NumPy, and the names of their arguments.

    Attributes:
      algorithm: the method.
      rounds: `(num_rounds, **values) -> models`.
      fields: value and argument of `rounds` by the dotted name within the method.
      model: what the objective is about.
    """

    algorithm: Any
    rounds: Callable[..., Models]
    fields: Mapping[str, tuple[float, str]]
    model: str

    def loss(self, num_rounds: int, **changed: Any) -> Any:
        """Mean of the clients' losses after these rounds."""
        values = {name: value for value, name in self.fields.values()}
        theta = self.rounds(num_rounds, **values | changed)[self.model]
        rows = np.broadcast_to(theta, (NUM_CLIENTS, DIM))
        return PROBLEM.losses(rows).mean()

    def slope(self, num_rounds: int, field: str) -> float:
        """Derivative of the loss in a field."""
        value, name = self.fields[field]
        step = 1e-30  # its square is lost beside 1
        return self.loss(num_rounds, **{name: value + 1j * step}).imag / step


LOCAL = {
    "local.learning_rate": (0.1, "learning_rate"),
    "local.momentum": (0.4, "momentum"),
}
LAM = {"lam": (0.7, "lam")}
FLAME = LAM | {"kappa": (2.5, "kappa")} | LOCAL
PLAIN = dataclasses.replace(SGD, momentum=None)
FEDPLUS = {
    "alpha": (0.8, "alpha"),
    "rho": (0.3, "rho"),
    "lam": (0.3, "lam"),
    "local.learning_rate": (0.1, "learning_rate"),
}


def fedplus_case(name: str, model: str) -> Case:
    made = {
        "sq": fp.FedPlus.mean,
        "l2": fp.FedPlus.geometric_median,
        "l1": fp.FedPlus.coordinate_median,
    }[name]
    algorithm = made(alpha=0.8, rho=0.3, lam=0.3, local=PLAIN)
    return Case(algorithm, functools.partial(fedplus, phi=name), FEDPLUS, model)


RELEASED = fp.Flame.official(lam=0.7, kappa=2.5, local=SGD)


def flame_case(model: str, **fields: str) -> Case:
    algorithm = fp.Flame(lam=0.7, kappa=2.5, local=SGD, **fields)
    return Case(algorithm, functools.partial(flame, **fields), FLAME, model)


CASES = {
    "fedavg": Case(fp.FedAvg(local=SGD), fedavg, LOCAL, "global"),
    "ditto": Case(fp.Ditto(lam=0.7, local=SGD), ditto, LAM | LOCAL, "personal"),
    "pfedme": Case(
        fp.PFedMe(
            lam=0.7,
            learning_rate=0.4,
            inner_learning_rate=0.2,
            server_learning_rate=0.9,
            num_steps=2,
            inner_steps=3,
            batch_size=problems.FULL_BATCH,
        ),
        pfedme,
        LAM
        | {
            "learning_rate": (0.4, "learning_rate"),
            "inner_learning_rate": (0.2, "inner_learning_rate"),
            "server_learning_rate": (0.9, "server_learning_rate"),
        },
        "global",
    ),
    "flame": flame_case("personal"),
    "flame_global": flame_case("global"),
    "flame_received": flame_case("personal", center="received"),
    "flame_joint": flame_case("global", center="joint"),
    "flame_rho": Case(
        fp.Flame(lam=0.7, rho=0.3, weighting="examples", local=SGD),
        functools.partial(flame, weighting="examples"),
        LAM | {"rho": (0.3, "rho")} | LOCAL,
        "global",
    ),
    "flame_released": Case(RELEASED, released_flame, FLAME, "personal"),
    "fedplus_mean": fedplus_case("sq", "personal"),
    "fedplus_geometric": fedplus_case("l2", "personal"),
    "fedplus_geometric_center": fedplus_case("l2", "global"),
    "fedplus_coordinates": fedplus_case("l1", "global"),
}


def differentiate(algorithm, fields, num_rounds, **options):
    process = fp.FederatedProcess(algorithm=algorithm)
    options = {"evaluate_on": "validation", "progress": False} | options
    names = [f"algorithm.{name}" for name in fields]
    given = KEY, process, PROBLEM.model, PROBLEM.federation, names, num_rounds
    return fp.hypergradients(*given, **options)


QUICK = ("fedavg", "flame", "ditto", "pfedme", "fedplus_mean")  # a case per method


@pytest.mark.parametrize("name", few(QUICK, CASES))
def test_derivatives_after_every_round_are_those_of_its_equations(name):
    case = CASES[name]
    objective = f"validation:loss:{case.model}"
    found = differentiate(
        case.algorithm, case.fields, NUM_ROUNDS, objective=objective, eval_every=1
    )
    assert found.objective == objective
    (history,) = found.result.groups
    values = history.diagnostics[f"{learned.OBJECTIVE}{objective}"][0]
    losses = [case.loss(done) for done in history.rounds]
    np.testing.assert_allclose(values, losses, rtol=RTOL)
    np.testing.assert_array_equal(found.value, values[-1:])
    for field in case.fields:
        name = f"algorithm.{field}"
        slopes = history.diagnostics[f"{learned.DERIVATIVE}{name}"][0]
        expected = [case.slope(done, field) for done in history.rounds]
        last = abs(expected[-1])
        assert last > RTOL * losses[-1], f"{field} leaves the objective as it is"
        np.testing.assert_allclose(
            slopes, expected, rtol=RTOL, atol=RTOL * last, err_msg=field
        )
        np.testing.assert_array_equal(found.derivatives[name], slopes[-1:])


def test_an_objective_is_about_one_client():
    case, client = CASES["flame"], 3
    found = differentiate(
        *(case.algorithm, case.fields, NUM_ROUNDS),
        objective=f"train:personal:client={client}",
    )
    for field, (value, name) in case.fields.items():
        values = {n: v for v, n in case.fields.values()}
        theta = flame(NUM_ROUNDS, **values | {name: value + 1e-30j})["personal"]
        expected = PROBLEM.loss(client, theta[client]).imag / 1e-30
        slope = found.derivatives[f"algorithm.{field}"]
        np.testing.assert_allclose(slope, [expected], rtol=RTOL, err_msg=field)


def test_without_a_path_to_the_objective_derivatives_are_exactly_zero():
    """Nothing of Ditto's personal models reaches its global one."""
    case = CASES["ditto"]
    objective = "validation:loss:global"
    found = differentiate(
        case.algorithm, case.fields, NUM_ROUNDS, objective=objective, eval_every=1
    )
    lam, *others = found.derivatives.values()
    assert lam == 0 and all(slope != 0 for slope in others)
