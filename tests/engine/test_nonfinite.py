"""What NaN, Inf and huge values leave behind in a compiled round, and in its record."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import client_rows, struct
from tests import problems
from tests.aggregators import rules
from tests.engine import faults
from tests.lanes import few, wide

KEY = jax.random.key(0)


@struct.pytree_dataclass
class Faulty(base.SingleExchange):
    """Client 1's new state, or the server's, is NaN after round `at`.

    `source` is 1 for the client, 2 for the server, 3 for side information of client 1,
    else nobody. What clients keep is mixed with the server's new state.
    """

    source: object = 0.0
    at: object = 2.0

    def init(self, key, model, population, data):
        params = model.init(key)
        return params, params, params

    def _poisoned(self, source, when, tree):
        bad = (self.source == source) & when
        return jax.tree.map(lambda leaf: jnp.where(bad, jnp.nan, leaf), tree)

    def client_update(self, view, down, client, model):
        pull = view.data.client_id + 1.0
        theta = jax.tree.map(lambda s, c: s / 2 + c / 4 + pull, down.shared, client)
        when = (view.round == self.at) & (view.data.client_id == 1)
        upload = view.upload(theta, aux=self._poisoned(3, when, {"loss": pull}))
        return self._poisoned(1, when, theta), upload, {}

    def server_update(self, ctx, server, aggregate, uploads):
        loss = (uploads.aux["loss"] * uploads.weight).sum()
        server = jax.tree.map(lambda leaf: leaf + 0.01 * loss, aggregate)
        return self._poisoned(2, ctx.round == self.at, server)

    def finish(self, ctx, server, clients):
        return jax.tree.map(lambda c, s: (c + s[None]) / 2, clients, server)

    def predictors(self, view, server, client, model):
        return {"personal": base.model_predictor(model, client, view.data.constants)}


def _faulty(mode, source=0.0, first=faults.NEVER, value=jnp.nan):
    return fp.FederatedProcess(
        algorithm=Faulty(source=jnp.asarray(float(source))),
        attack=faults.Sends(value=jnp.asarray(value), first=jnp.asarray(float(first))),
        on_nonfinite=mode,
    )


def _finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def _same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def _around(mode, num_rounds=5, **fields):
    """States before and after round 2, all states, and the counts of the rounds."""
    problem = faults.problem(1, 6)
    states, infos, _ = problems.run(_faulty(mode, **fields), problem, num_rounds)
    clean, _, _ = problems.run(_faulty(mode), problem, num_rounds)
    for r in range(3):
        _same(client_rows.take(states, r), client_rows.take(clean, r))
    assert states.memory["nonfinite"].tolist() == [0, *np.cumsum(infos.num_nonfinite)]
    before, after, fine = (
        client_rows.take(s, r) for s, r in ((states, 2), (states, 3), (clean, 3))
    )
    return before, after, fine, states, infos.num_nonfinite.tolist()


FAULTS = {
    "message": {"first": 2},
    "infinite message": {"first": 2, "value": -jnp.inf},
    "row": {"source": 1},
    "server": {"source": 2},
    "side information": {"source": 3},
}


@pytest.mark.parametrize("fault", ["row", "server", "side information"])
def test_freeze_leaves_the_state_as_it_was(fault):
    before, after, _, states, counts = _around("freeze", **FAULTS[fault])
    same = dataclasses.replace(before, round=after.round)
    _same(same.with_memory(nonfinite=after.memory["nonfinite"]), after)
    assert after.round == 3 and counts[:2] == [0, 0]
    # A server that is not finite reaches the six clients' rows as well.
    assert counts[2] == (7 if fault == "server" else 1)
    assert _finite(states) and counts[3:] == [0, 0]
    assert not np.array_equal(states.server["theta"][-1], after.server["theta"])


@pytest.mark.parametrize(
    ("fault", "mode"),
    [
        *itertools.product(("message", "infinite message"), ("stop", "drop", "freeze")),
        *itertools.product(["side information"], ("stop", "drop")),
    ],
)
def test_a_lost_upload_takes_no_part(fault, mode):
    before, after, fine, states, counts = _around(mode, **FAULTS[fault])
    assert _finite(states) and counts[:3] == [0, 0, 1]
    lost = 1 if fault == "side information" else 0
    others = np.arange(6) != lost
    received, kept = after.rows["messages"]["theta"], before.rows["messages"]["theta"]
    np.testing.assert_array_equal(received[lost], kept[lost])
    np.testing.assert_array_equal(
        received[others], fine.rows["messages"]["theta"][others]
    )
    weights = np.asarray(faults.problem(1, 6).federation.train.num_examples)[others]
    mean = np.average(received[others], axis=0, weights=weights)
    loss = weights @ (np.arange(6) + 1.0)[others]
    np.testing.assert_allclose(after.server["theta"], mean + 0.01 * loss, rtol=1e-13)


def test_drop_keeps_the_old_row_of_a_client():
    before, after, fine, states, counts = _around("drop", **FAULTS["row"])
    assert _finite(states) and counts == [0, 0, 1, 0, 0]
    _same(after.server, fine.server)
    _same(after.rows["messages"], fine.rows["messages"])
    rows, others = after.clients["theta"], np.arange(6) != 1
    np.testing.assert_array_equal(rows[others], fine.clients["theta"][others])
    server = after.server["theta"]
    np.testing.assert_array_equal(rows[1], (before.clients["theta"][1] + server) / 2)


def test_drop_keeps_the_old_server_and_the_rows_it_would_reach():
    before, after, fine, states, counts = _around("drop", **FAULTS["server"])
    assert _finite(states) and counts == [0, 0, 7, 0, 0]
    _same(after.server, before.server)
    _same(after.clients, before.clients)
    _same(after.rows["messages"], fine.rows["messages"])


def test_stop_leaves_what_happened_in_the_state():
    before, after, fine, states, counts = _around("stop", **FAULTS["row"])
    rows = after.clients["theta"]
    assert np.isnan(rows[1]).all()
    _same(after.server, fine.server)
    np.testing.assert_array_equal(
        rows[[0, 2, 3, 4, 5]], fine.clients["theta"][[0, 2, 3, 4, 5]]
    )
    # From then on its message is lost as well, and nobody else's.
    assert counts == [0, 0, 1, 2, 2] and _finite(
        (states.server, states.rows["messages"])
    )
    before, after, fine, states, counts = _around("stop", **FAULTS["server"])
    assert np.isnan(after.server["theta"]).all() and counts[:3] == [0, 0, 7]
    _same(after.rows["messages"], fine.rows["messages"])
    assert _finite(states.rows["messages"])


def _grid(mode, sources, firsts):
    spec = fp.FederationSpec(
        dataset=data.Quadratic(dim=3),
        partition="by_client",
        num_clients=6,
        malicious_fraction=0.2,
    )
    axes = {"algorithm.source": sources, "attack.first": firsts}
    return fp.grid(
        *(KEY, _faulty(mode), fp.models.Quadratic(), spec, axes, 5),
        eval_every=1,
        evaluate_on="test",
        progress=False,
    ).groups[0]


@pytest.mark.parametrize("mode", ["stop", *map(wide, ("drop", "freeze"))])
def test_a_grid_records_the_lanes_that_met_something(mode):
    record = _grid(mode, [0.0, 1.0, 2.0], [faults.NEVER, 2.0])
    quiet = _grid(mode, [0.0, -1.0, -2.0], [faults.NEVER, faults.NEVER + 1])
    for name, values in quiet.metrics.items():
        np.testing.assert_array_equal(record.metrics[name][0], values[0])
    assert (quiet.per_round["num_nonfinite"] == 0).all()
    counts = record.per_round["num_nonfinite"]
    assert (counts[:, :2] == 0).all() and (counts[0] == 0).all()
    np.testing.assert_array_equal(counts[:, 2], [0, 1, 1, 2, 7, 8])
    stops = mode == "stop"
    # The attacker of points 1, 3 and 5 ends nothing; client 1 of 2 and 3 ends alone.
    ended = [-1, -1, 3, 3, 3, 3] if stops else [-1] * 6
    assert record.diverged_at.tolist() == ended
    assert quiet.diverged_at.tolist() == [-1] * 6
    loss = record.metrics["loss"][:, :, 0, 0]
    assert np.isfinite(loss[:, :3]).all() and np.isfinite(loss[:2]).all()
    if stops:
        assert np.isnan(loss[4:, 3:]).all() and np.isnan(loss[2:4, 3:, 1]).all()
        assert np.isfinite(loss[2:4, :, [0, 2, 3, 4, 5]]).all()
        ends = ["ok"] * 2 + ["diverged at round 3 (client 1)"] * 2
        assert record.status == (*ends, *["diverged at round 3"] * 2)
    else:
        assert np.isfinite(loss).all()
    if mode == "freeze":
        np.testing.assert_array_equal(loss[2:, 3], loss[2:, 2])


HUGE = (np.nan, np.inf, -np.inf, 1e38, -1.7e308)


def _trained(aggregator, value, turn=1.0):
    """The server's last two models under three of eight attackers."""
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=problems.full_gradient_steps(1, 0.5)),
        aggregator=fp.algorithms.AGGREGATORS[aggregator](),
        attack=faults.Sends(value=jnp.asarray(value), turn=jnp.asarray(turn)),
        on_nonfinite="drop",
    )
    states, infos, _ = problems.run(process, faults.problem(), 60)
    assert _finite(states)
    lost = 0 if np.isfinite(value) else faults.NUM_MALICIOUS
    assert (infos.num_nonfinite == lost).all()
    return states.server["theta"][-2:]


@pytest.mark.wide
@rules.each_mean_or_robust_rule
def test_trainings_converge_under_such_attackers(name):
    honest = faults.problem().estimates[faults.NUM_MALICIOUS :]
    center = honest.mean(axis=0)
    radius = np.linalg.norm(honest - center, axis=1).max()
    share = faults.NUM_MALICIOUS / faults.NUM_CLIENTS
    robust = fp.algorithms.AGGREGATORS[name]().incremental is None
    for value in HUGE if robust else HUGE[:3]:
        previous, last = _trained(name, value)
        # Half of the way every round, and the geometric median to its tolerance.
        assert np.linalg.norm(last - previous) <= 1e-8 * radius, value
        _, turned = _trained(name, value, turn=-1.0)
        # A round takes the rule of rows halfway to the targets: after many, its
        # distance from their center is at most the rule's from the targets'.
        bound = 2 * (1 - share) / (1 - 2 * share) * radius
        for found in (last, turned):
            assert np.linalg.norm(found - center) <= bound, value


def test_left_out_attackers_leave_the_mean_of_the_honest():
    problem = faults.problem()
    honest = problem.estimates[faults.NUM_MALICIOUS :]
    for name, weighting in (("mean", "uniform"), ("weighted_mean", "examples")):
        weights = problem.alpha(weighting)[faults.NUM_MALICIOUS :]
        expected = np.average(honest, axis=0, weights=weights)
        np.testing.assert_allclose(_trained(name, np.nan)[1], expected, rtol=1e-12)
    median = _trained("coordinate_median", np.nan)[1]
    np.testing.assert_allclose(median, np.median(honest, axis=0), rtol=1e-12)


def _history(process, num_rounds=4):
    problem = faults.problem(1, 6)
    result = fp.simulate(
        *(KEY, process, problem.model, problem.federation),
        num_rounds=num_rounds,
        eval_every=1,
        progress=False,
    )
    return result.groups[0]


@pytest.mark.parametrize(
    "name", few(("weighted_mean", "coordinate_median"), fp.algorithms.AGGREGATORS)
)
def test_robust_rules_go_on_without_an_honest_nonfinite_message(name):
    """Means lose a client that the objective counts, which ends this client."""
    rule = fp.algorithms.AGGREGATORS[name]()
    process = dataclasses.replace(_faulty("stop", source=3), aggregator=rule)
    if name == "product_mean":
        pytest.skip("takes models with adapters only")
    group = _history(process)
    assert group.per_round["num_nonfinite"].tolist() == [[0, 0, 1, 0]]
    lost = np.isnan(group.metrics["loss"][0, :, 0, 0])
    expected = np.zeros((5, 6), bool)
    if rule.incremental:
        expected[3:, 1] = True
        assert group.status == ("diverged at round 3 (client 1)",)
    else:
        assert group.status == ("ok",)
    np.testing.assert_array_equal(lost, expected)


def test_a_training_without_any_honest_message_diverges():
    """Whatever the rule is; malicious ones that arrive do not count."""
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=fp.SGD(learning_rate=1e300, epochs=2)),
        aggregator=fp.CoordinateMedian(),
        attack=faults.Sends(value=jnp.asarray(1.0), first=jnp.asarray(0.0)),
    )
    group = _history(process)
    assert group.status == ("diverged at round 1",)
    honest = group.metrics["loss"][0, 1:, 0, 0][:, ~group.malicious[0]]
    assert np.isnan(honest).all()


def test_means_over_clients_are_missing_once_one_has_diverged(tmp_path):
    group = _history(_faulty("stop", source=1))
    result = fp.results.Result(groups=(group,), provenance={})
    table = result.table().query("metric == 'loss' and stat == 'mean'")
    last = table[(table["when"] == "last") & (table["population"] == "honest")]
    assert last["value"].isna().all()
    clients = result.clients().query("metric == 'loss'").set_index("client")["value"]
    assert clients.groupby("client").first().isna().tolist() == [
        client == 1 for client in range(6)
    ]
    result.save(tmp_path / "out")
    (loaded,) = fp.Result.load(tmp_path / "out").groups
    assert loaded.status == group.status == ("diverged at round 3 (client 1)",)
