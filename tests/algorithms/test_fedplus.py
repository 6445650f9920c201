"""Fed+ against its rounds in NumPy, its special cases, and its own corner cases."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import base, phi
from fedjax_pfl.core import checks
from fedjax_pfl.testing import compiled_rounds
from tests import problems
from tests.algorithms import fedplus_oracles as oracles
from tests.lanes import wide
from tests.setups import process

CLOSE = {"rtol": 1e-9, "atol": 1e-9}  # the tolerance of the medians in float64
BATCHES = fp.SGD(learning_rate=0.2, epochs=3, batch_size=2)
PHIS = {
    "sq": phi.Squared(),
    "l2": phi.L2(),
    "l1": phi.L1(),
    "indicator": phi.Indicator(),
    "zero": phi.Zero(),
}


def run(algorithm, problem, rounds=6, size=4, **fields):
    return problems.run(process(algorithm, size, **fields), problem, rounds)


WIDELY = [*map(wide, ("l1", "indicator", "zero"))]


@pytest.mark.parametrize("name", ["sq", "l2", *WIDELY])
def test_rounds_are_the_equations_in_numpy(name):
    """The anchor comes from the member's last model, before it is mixed (lam)."""
    problem, eta, alpha, rho = problems.waves(), 0.4, 0.7, 0.15
    algorithm = fp.FedPlus(
        phi=PHIS[name],
        alpha=alpha,
        rho=rho,
        lam=0.3,
        local=problems.full_gradient_steps(3, eta),
    )
    states, infos, _ = run(algorithm, problem, 8)
    start = states.server.c["theta"][0]
    w, c = oracles.rounds(
        *(problem, start, infos.cohort),
        **{"name": name, "alpha": alpha, "rho": rho, "lam": 0.3},
        **{"eta": eta, "steps": 3},
    )
    np.testing.assert_allclose(states.clients["theta"][1:], w, **CLOSE)
    np.testing.assert_allclose(states.server.c["theta"][1:], c, **CLOSE)
    gaps = np.linalg.norm(
        states.clients["theta"] - states.server.c["theta"][:, None], axis=2
    )
    members = np.take_along_axis(gaps[:-1], infos.cohort, axis=1)
    np.testing.assert_allclose(infos.client["distance"], members, atol=1e-12)
    np.testing.assert_allclose(infos.client["jump"], 0.3 * members, atol=1e-12)
    if name == "l2":
        np.testing.assert_array_equal(infos.client["clipped"], members > rho)


# Local steps (Proposition 2), their number, and members without any.


def test_a_step_is_gradient_descent_on_the_coupled_loss():
    """With step size `eta / (1 + alpha eta)`."""
    problem, alpha, eta = problems.waves(), 0.9, 0.4
    algorithm = fp.FedPlus(
        phi=phi.Indicator(), alpha=alpha, local=problems.full_gradient_steps(4, eta)
    )
    states, _, _ = problems.run(process(algorithm), problem, 3)
    before, after = states.clients["theta"][1:-1], states.clients["theta"][2:]
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        c = states.server.c["theta"][number + 1]
        for k, row in enumerate(old):
            row = problem.descend(k, row, c, alpha, 4, eta / (1 + alpha * eta))
            np.testing.assert_allclose(new[k], row, atol=1e-12)


@dataclasses.dataclass(frozen=True)
class Flat(fp.core.Model):
    """A loss of 0: local work is only the pull."""

    size: int = 3

    def for_federation(self, federation):
        return self

    def init(self, key):
        return {"theta": jax.random.normal(key, (self.size,))}

    def apply(self, params, x, *, key=None, constants=None):
        return 0 * x @ params["theta"]

    def loss(self, outputs, batch):
        return 0 * outputs.sum()

    def metrics(self, outputs, batch):
        return {"loss": 0 * outputs}


@pytest.mark.parametrize(
    ("solver", "count"),
    [
        (fp.SGD(learning_rate=0.5, num_steps=7, batch_size=2), 7),
        wide(fp.SGD(learning_rate=0.5, epochs=3, batch_size=64), 3),
    ],
)
def test_without_a_loss_only_a_power_of_theta_is_left(solver, count):
    """`w = z + theta^E (start - z)`, whatever a client's number of examples is."""
    problem = dataclasses.replace(problems.waves(), model=Flat())
    algorithm = fp.FedPlus(phi=phi.Indicator(), theta=0.8, local=solver)
    whole = process(algorithm)
    state = problems.first_state(whole, problem)
    rng = np.random.default_rng(0)
    w = rng.normal(size=state.clients["theta"].shape)
    state = dataclasses.replace(state, clients={"theta": jnp.asarray(w)})
    states, _, _ = problems.run(whole, problem, 1, state=state)
    c = states.server.c["theta"][0]
    np.testing.assert_allclose(
        states.clients["theta"][1], c + 0.8**count * (w - c), rtol=1e-12
    )


def test_the_pull_may_come_once_per_epoch():
    problem, theta, eta = problems.waves(), 0.7, 0.3
    algorithm = fp.FedPlus(
        phi=phi.Indicator(),
        theta=theta,
        pull_every="epoch",
        local=fp.SGD(learning_rate=eta, epochs=2, batch_size=64),
    )
    states, _, _ = problems.run(process(algorithm), problem, 1)
    start = states.server.c["theta"][0]
    for k, found in enumerate(states.clients["theta"][1]):
        row = start
        for _ in range(2):
            row = theta * (row - eta * problem.gradient(k, row)) + (1 - theta) * start
        np.testing.assert_allclose(found, row, atol=1e-12)


@pytest.mark.parametrize("execution", ["vmap", wide("chunk=2")])
def test_members_take_their_own_numbers_of_steps(execution):
    """A budget of epochs counts steps where the solver does."""
    problem = problems.waves()
    algorithm = fp.FedPlus(
        phi=phi.Squared(),
        rho=0.5,
        theta=0.9,
        local=fp.SGD(learning_rate=0.3, num_steps=5, batch_size=64),
    )
    whole = process(algorithm, work=fp.local.ClientBudgets(epochs=(1, 5, 3)))
    state = problems.first_state(whole, problem)
    new, _ = jax.jit(whole.round, static_argnums=(1, 3))(
        state, problem.model, problem.federation, fp.core.Execution.parse(execution)
    )
    start = np.asarray(state.server.c["theta"])
    for k, steps in enumerate((1, 5, 3, 1, 5, 3)):
        row = start
        for _ in range(steps):
            row = 0.9 * (row - 0.3 * problem.gradient(k, row)) + 0.1 * start
        np.testing.assert_allclose(new.clients["theta"][k], row, atol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize("over", ["cohort", wide("all")])
def test_members_without_a_step_are_as_if_not_selected(over):
    """Also where the start would be mixed with the center; for want of data, too."""
    problem = problems.waves()
    algorithm = fp.FedPlus(
        phi=phi.L1(), rho=0.1, lam=0.5, aggregate_over=over, local=BATCHES
    )
    whole = process(algorithm, work=fp.local.ClientBudgets(epochs=(3, 3, 0, 3, 3, 3)))
    counts = np.asarray(problem.federation.train.num_examples).copy()
    counts[4] = 0
    train = dataclasses.replace(
        problem.federation.train, num_examples=jnp.asarray(counts)
    )
    federation = dataclasses.replace(problem.federation, train=train)
    problem = dataclasses.replace(problem, federation=federation)
    states, _, _ = problems.run(whole, problem, 3)
    w, c = states.clients["theta"], states.server.c["theta"]
    assert (w[1:, [2, 4]] == w[0, 0]).all()
    assert np.abs(w[-1, [0, 1, 3, 5]] - w[0, 0]).min() > 0
    # Without data a client has no say; without a step its last model may have one.
    rows = [0, 1, 3, 5] if over == "cohort" else [0, 1, 2, 3, 5]
    for number in (1, 2, 3):  # the center of these: their clipped gaps cancel
        gaps = np.clip(w[number, rows] - c[number], -0.1, 0.1)
        np.testing.assert_allclose(gaps.sum(axis=0), 0, atol=1e-12)


# The radius.


@pytest.mark.wide
@pytest.mark.parametrize("name", ["l2", wide("l1")])
def test_a_quantile_of_the_distances_is_the_radius(name):
    problem = problems.waves()
    algorithm = fp.FedPlus(phi=PHIS[name], rho_quantile=0.5, local=BATCHES)
    states, infos, _ = run(algorithm, problem, 4, size=5)
    gaps = states.clients["theta"] - states.server.c["theta"][:, None]
    for number, members in enumerate(infos.cohort):
        lengths = np.linalg.norm(gaps[number + 1, members], axis=1)
        lengths = lengths / np.sqrt(3) if name == "l1" else lengths
        expected = np.sort(lengths)[2]
        np.testing.assert_allclose(states.server.rho[number + 1], expected, rtol=1e-9)


@pytest.mark.wide
def test_a_scale_free_radius_commutes_with_scaling():
    """Losses of `theta / s` from `s start`: everything is s times as large."""
    ours = problems.regressions()
    algorithm = fp.FedPlus(phi=phi.L2(), alpha=0.3, rho_quantile=0.5, local=BATCHES)
    states, _, _ = run(algorithm, ours)
    train = ours.federation.train
    larger = dataclasses.replace(train, y=8 * train.y)
    federation = dataclasses.replace(ours.federation, train=larger)
    scaled, _, _ = run(algorithm, dataclasses.replace(ours, federation=federation))
    np.testing.assert_allclose(
        scaled.clients["theta"], 8 * states.clients["theta"], rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(scaled.server.rho, 8 * states.server.rho, rtol=1e-8)


@pytest.mark.wide
def test_layers_are_separate_methods():
    """A local head and a body as in FedProx, on a network with both."""
    spec = fp.FederationSpec("gaussian_classes", "by_client", num_clients=4)
    federation = spec.build()
    algorithm = fp.FedPlus.layer_wise(
        ("^head/", ""), ("zero", "indicator"), alpha=0.5, rho=1.0, local=BATCHES
    )
    whole = process(algorithm)
    model = fp.MLP(widths=(5,)).for_federation(federation)
    state = compiled_rounds.init(whole, jax.random.key(0), model, federation)
    step = jax.jit(whole.round, static_argnums=1)
    for _ in range(2):
        state, _ = step(state, model, federation)
    z = jax.vmap(lambda w: algorithm.anchor(state.server, w))(state.clients)
    for found, own in zip(
        *map(jax.tree.leaves, (z["head"], state.clients["head"])), strict=True
    ):
        np.testing.assert_allclose(found, own, rtol=1e-12, atol=1e-12)
    body = {name: leaf for name, leaf in z.items() if name != "head"}
    for found, c in zip(
        jax.tree.leaves(body),
        jax.tree.leaves({n: x for n, x in state.server.c.items() if n != "head"}),
        strict=True,
    ):
        np.testing.assert_array_equal(found, np.broadcast_to(c, found.shape))
    wrong = fp.FedPlus.layer_wise(("^haed/", ""), ("zero", "l2"))
    with pytest.raises(checks.InputError, match="haed"):
        process(wrong).init(jax.random.key(0), model, federation)


def test_predictors_are_the_model_its_anchor_and_the_center():
    problem = problems.quadratics([[0.0, 0.0], [4.0, 0.0], [0.0, 8.0]])
    algorithm = fp.FedPlus(
        phi=phi.L2(), rho=1.0, local=problems.full_gradient_steps(1, 0.5)
    )
    whole = process(algorithm)
    states, _, _ = problems.run(whole, problem, 2)
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), states)
    w = jax.tree.map(lambda leaf: leaf[2], state.clients)
    data = problem.federation.train.pool().with_rows(
        jax.tree.map(lambda leaf: leaf[2], problem.federation.train.rows())
    )
    view = fp.ClientView(key=jax.random.key(0), round=0, data=data)
    found = algorithm.predictors(view, state.server, w, problem.model)
    assert list(found) == ["personal", "anchor", "global"]
    origin = jnp.zeros((1, 2))
    c = state.server.c["theta"]
    expected = {
        "personal": w["theta"],
        "anchor": c + oracles.prox("l2", np.asarray(w["theta"] - c), 1.0),
        "global": c,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name](origin)[0], value, rtol=1e-12)


@pytest.mark.wide
def test_optimizers_with_memory_step_before_the_pull():
    problem = problems.waves()
    adam = fp.Optax(hyperparameters={"learning_rate": 0.1}, batch_size=64)
    algorithm = fp.FedPlus(phi=phi.Indicator(), alpha=2.0, local=adam)
    states, _, _ = problems.run(process(algorithm), problem, 1)
    theta, start = 1 / 1.2, states.server.c["theta"][0]
    transformation = optax.adam(0.1)
    for k, found in enumerate(states.clients["theta"][1]):
        gradient = jnp.asarray(problem.gradient(k, start))
        step, _ = transformation.update(gradient, transformation.init(gradient))
        row = theta * (start + np.asarray(step)) + (1 - theta) * start
        np.testing.assert_allclose(found, row, rtol=1e-9)


def test_the_mapping_of_fedprox_needs_small_steps():
    with pytest.raises(checks.InputError, match=r"mu times the learning rate.* 1\.5"):
        fp.FedPlus.fedprox(mu=3.0, local=fp.SGD(learning_rate=0.5))
    with pytest.raises(checks.InputError, match="SGD without momentum"):
        fp.FedPlus.fedprox(mu=1.0, local=fp.SGD(momentum=0.5))
    with pytest.raises(checks.InputError, match="eta|learning_rate"):
        fp.FedPlus(local=fp.SGD(learning_rate=-1.0))
    with pytest.raises(checks.InputError, match="mu"):
        fp.FedProx(mu=-1.0)


def test_pull_is_exact_at_its_ends():
    w, z = {"theta": jnp.array([0.1, 0.2])}, {"theta": jnp.array([1e8, 3.0])}
    np.testing.assert_array_equal(base.mixture(w, z, 1.0)["theta"], w["theta"])
