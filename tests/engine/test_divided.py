"""Rules whose columns, and cohorts whose rows, are divided among devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.core import client_rows, columns, sharding, split_rows
from fedjax_pfl.engine import layout
from tests.collectives import collectives
from tests.lanes import few

SHARD = sharding.Execution.parse("shard")
DEVICES = 8
RULES = {
    "median": fp.CoordinateMedian(),
    "quantile": fp.CoordinateMedian(rho_quantile=0.5),
    "trimmed": fp.TrimmedMean(num_malicious=2),
    "meamed": fp.aggregators.MeaMed(num_malicious=2),
    "krum": fp.Krum(num_malicious=2),
    "multi_krum": fp.Krum(num_malicious=2, num_selected=3),
    "bulyan": fp.aggregators.Bulyan(num_malicious=2),
    "geometric": fp.GeometricMedian(rho=0.5),
    "reference": fp.GeometricMedian(start="reference", rho_quantile=0.3),
    "centered": fp.aggregators.CenteredClipping(tau=2.0, num_iterations=2),
    "norm": fp.aggregators.NormClipping(),
    "common": fp.aggregators.CommonDescent(eps=1.0),
    "mixing": fp.aggregators.NearestNeighborMixing(),
    "buckets": fp.aggregators.Bucketing(rule=fp.Krum(num_malicious=1)),
    "blocks": fp.aggregators.Blockwise(
        patterns=("^a", ""), parts=(fp.GeometricMedian(), fp.TrimmedMean())
    ),
}
SAME_BITS = ("median", "trimmed", "meamed", "krum", "buckets")
"""Of values of one coordinate; Krum takes a row as it is."""
CASES = few(("median", "krum", "geometric"), RULES)


def messages_of(count):
    """Messages of two leaves, 376 columns, an outlier and a row that is not finite."""
    rng = np.random.default_rng(count)
    rows = {"a": rng.normal(size=(count, 5, 70)), "b": rng.normal(size=(count, 26))}
    rows["b"][1] += 50
    rows["a"][2, 1, 1] = np.nan
    weights = rng.integers(1, 9, count).astype(float)
    weights[3] = 0
    point = {"a": np.full((5, 70), 0.1), "b": np.full(26, -0.2)}
    return jax.tree.map(jnp.asarray, (rows, weights, point))


def compiled(rule, count, execution):
    """The rule as a program of rows that devices share, where they can."""
    rows, weights, point = messages_of(count)
    if execution.mode == "shard" and count % DEVICES == 0:
        split = NamedSharding(sharding.client_mesh(0), PartitionSpec(sharding.AXIS))
        rows = jax.device_put(rows, split)
        weights, point = sharding.replicate((weights, point), execution)

    def apply(rule, rows, weights, point):
        with sharding.over(execution):
            return rule(jax.random.key(3), rows, weights, point)

    lowered = jax.jit(apply).lower(rule, rows, weights, point)
    return lowered.compile(), (rule, rows, weights, point)


@pytest.mark.parametrize("name", CASES)
def test_rules_of_divided_columns_are_those_of_one_device(name):
    """And no device gets all messages; 16 rows, then 13, which do not divide."""
    alone = sharding.Execution()
    for count in (16, 13) if name in ("median", "krum") else (16,):
        program, given = compiled(RULES[name], count, SHARD)
        row, report = program(*given)
        reference, given = compiled(RULES[name], count, alone)
        expected, told = reference(*given)
        for found, wanted in zip(
            jax.tree.leaves((row, report)), jax.tree.leaves((expected, told)),
            strict=True,
        ):  # fmt: skip
            if name in SAME_BITS:
                np.testing.assert_allclose(found, wanted, rtol=1e-13)
            else:
                np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
        if name in SAME_BITS:
            jax.tree.map(np.testing.assert_array_equal, row, expected)
        if count % DEVICES:
            continue
        whole = count * 376 * 8  # bytes
        for kind, size in collectives(program.as_text()):
            assert size < whole / 4, (kind, size)


@pytest.mark.wide
@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="a fault of JAX")
def test_derivatives_are_those_of_columns_together():
    rows, weights, point = messages_of(16)
    rows = jax.tree.map(lambda leaf: jnp.where(jnp.isnan(leaf), 0, leaf), rows)

    def length(rho, execution):
        with sharding.over(sharding.Execution.parse(execution)):
            rule = fp.GeometricMedian(rho=rho)
            row, _ = rule(jax.random.key(0), rows, weights, point)
        return sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(row))

    slope = jax.jit(jax.grad(length), static_argnums=1)
    found, expected = slope(20.0, "shard"), slope(20.0, "vmap")
    assert abs(expected) > 1e-6
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("count", [16, 13])
def test_mixtures_and_products_of_all_pairs_are_those_of_one_device(count):
    """And no device gets all rows, or all mixtures."""
    rows, _, _ = messages_of(count)
    rows = jax.tree.map(jnp.nan_to_num, rows)
    weights = jnp.asarray(np.random.default_rng(1).random((count, count)))
    if count % DEVICES == 0:
        split = NamedSharding(sharding.client_mesh(0), PartitionSpec(sharding.AXIS))
        rows = jax.device_put(rows, split)

    def both(rows, weights):
        with sharding.over(SHARD):
            return columns.gram(rows), columns.mix(rows, weights)

    program = jax.jit(both).lower(rows, weights).compile()
    expected = (client_rows.gram(rows), client_rows.mix(rows, weights))
    found = program(rows, weights)
    assert (found[0] == found[0].T).all()
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    if count % DEVICES == 0:
        whole = count * 376 * 8
        sizes = [size for _, size in collectives(program.as_text())]
        assert sizes and max(sizes) < whole / 4


@pytest.mark.parametrize("cohort", [[0, 3, 4, 9, 10, 11, 20, 23], [23], [2, 7, 11]])
def test_rows_of_a_cohort_travel(cohort):
    """The same values, NaN included; others stay as they are."""
    rng = np.random.default_rng(0)
    tree = {
        "x": rng.normal(size=(24, 3)).astype(np.float32),
        "n": np.arange(24, dtype=np.int32),
        "b": rng.normal(size=(24, 2, 2)) > 0,
    }
    tree["x"][3] = np.nan
    rows = jnp.asarray(cohort, jnp.int32)
    new = jax.tree.map(lambda leaf: leaf[::-1][: len(cohort)].copy(), tree)
    placed = sharding.shard_rows(jax.tree.map(jnp.asarray, tree), 24, SHARD)
    taken = jax.jit(lambda t, r: split_rows.take(t, r, SHARD))(placed, rows)
    written = jax.jit(lambda t, r, v: split_rows.put(t, r, v, SHARD))(placed, rows, new)
    expected = client_rows.take(tree, np.asarray(cohort))
    for name, leaf in tree.items():
        leaf[cohort] = new[name]
        for found, wanted in ((taken, expected[name]), (written, leaf)):
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def test_a_model_of_as_many_outputs_as_clients_is_on_every_device():
    """Only rows of clients are divided, and derivatives lie where their states do."""
    execution = sharding.Execution.parse("shard=4")
    rows, model = jnp.zeros((1, 8, 3)), jnp.zeros((1, 8, 3))
    state = core.State(
        server=model,
        clients=rows,
        memory={"nonfinite": jnp.zeros(1, jnp.int32)},
        round=jnp.zeros(1, jnp.int32),
        key=jax.random.key(0),
    )
    placed = layout.placed_states(state, 8, execution)
    tangents = sharding.shard_stacked(
        [jnp.zeros((2, *leaf.shape)) for leaf in (model, rows)],
        [placed.server, placed.clients],
    )
    for whole, own in ((placed.server, placed.clients), tangents):
        assert whole.sharding.is_fully_replicated
        (size,) = {shard.data.shape[-2] for shard in own.addressable_shards}
        assert size == 2
