"""Attacks change malicious rows only; draws belong to the client, formulas to NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fedjax_pfl as fp
from fedjax_pfl import attacks
from fedjax_pfl.attacks import alie
from fedjax_pfl.core import checks
from tests import problems
from tests.lanes import few, wide
from tests.setups import with_malicious

KEYS = jax.random.split(jax.random.key(3, impl="threefry2x32"), 9)
_send = jax.jit(lambda attack, *arguments: attack(*arguments))
MALICIOUS = np.isin(np.arange(9), (0, 2, 5))
ORDER = np.array([4, 2, 8, 0, 5, 7, 1, 3, 6])
DIRECTIONS = ("unit", "sign", "std")


def _messages(dtype=jnp.float64):
    rng = np.random.default_rng(0)
    tree = {"w": rng.normal(size=(9, 3, 2)), "b": 3 * rng.normal(size=(9, 4))}
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def _reference(dtype=jnp.float64):
    return {"w": jnp.ones((3, 2), dtype), "b": jnp.full(4, -2, dtype)}


def _flat(tree):
    """Rows `[K, D]` or a vector `[D]` in float64."""
    tail = {"w": 2, "b": 1}
    parts = [np.asarray(tree[name], float) for name in ("b", "w")]
    parts = [
        part.reshape(*part.shape[: part.ndim - tail[name]], -1)
        for name, part in zip(("b", "w"), parts, strict=True)
    ]
    return np.concatenate(parts, axis=-1)


CASES = {
    "sign_flip": attacks.SignFlip(),
    "sign_flip_reference": attacks.SignFlip(std=0.3, about="reference"),
    "sign_flip_official": attacks.SignFlip.official(),
    "gaussian": attacks.Gaussian(),
    "gaussian_reference": attacks.Gaussian(std=1.0, about="reference"),
    "same_value": attacks.SameValue(),
    "scaling": attacks.Scaling(),
    "ipm": attacks.IPM(),
    "ipm_message": attacks.IPM(tau=10.0, about="message"),
    "alie": attacks.ALIE(z=1.5),
    "alie_largest": attacks.ALIE(plus=True, deviation="sample"),
    **{f"min_max_{d}": attacks.MinMax(direction=d) for d in DIRECTIONS},
    **{f"min_sum_{d}": attacks.MinSum(direction=d) for d in DIRECTIONS},
    "min_max_message": attacks.MinMax(direction="unit", about="message"),
    "mimic": attacks.Mimic(),
    "mimic_fixed": attacks.Mimic(victim=1),
}
COLLUDING = [n for n in CASES if n.startswith(("ipm", "alie", "min", "mimic"))]
each_attack = pytest.mark.parametrize("name", CASES)
each_colluding = pytest.mark.parametrize("name", COLLUDING)
# Their own program in float32 is compiled on demand only.
VARIANTS = {"gaussian_reference", "sign_flip_reference", "ipm_message", "mimic_fixed"}
VARIANTS |= {"min_max_sign", "min_max_message", "min_sum_unit", "min_sum_sign"}
VARIANTS |= {"alie_largest", "min_max_std", "min_sum_std", "sign_flip_official"}


def _sent(name, messages, malicious=MALICIOUS, reference=None, keys=KEYS):
    """What the server receives."""
    dtype = messages["w"].dtype
    reference = _reference(dtype) if reference is None else reference
    sent, state = _send(CASES[name], keys, None, messages, malicious, reference)
    assert state is None and CASES[name].init(messages) is None
    return sent


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, jnp.float64) for name in CASES]
    + [wide(n, jnp.float32) if n in VARIANTS else (n, jnp.float32) for n in CASES],
)
def test_only_malicious_rows_change(name, dtype):
    messages = _messages(dtype)
    messages["b"] = messages["b"].at[1, 0].set(jnp.nan)  # honest rows stay as they are
    if name in COLLUDING:  # who do not look at their own
        messages["w"] = messages["w"].at[2].set(jnp.inf)
    sent = _sent(name, messages)
    for leaf, before in messages.items():
        before, after = np.asarray(before), np.asarray(sent[leaf])
        assert after.dtype == before.dtype
        assert before[~MALICIOUS].tobytes() == after[~MALICIOUS].tobytes()
        assert (before[MALICIOUS] != after[MALICIOUS]).all()
        assert np.isfinite(after[MALICIOUS]).all()


@each_attack
def test_permuting_clients_permutes_messages(name):
    if name == "mimic_fixed":
        pytest.skip("its victim is a number in the order of clients")
    messages, sent = _messages(), _sent(name, _messages())
    moved = jax.tree.map(lambda x: x[ORDER], messages)
    other = _sent(name, moved, MALICIOUS[ORDER], keys=KEYS[ORDER])
    for leaf in messages:
        np.testing.assert_allclose(sent[leaf][ORDER], other[leaf], atol=1e-13)


@each_attack
def test_nobody_malicious_changes_nothing(name):
    messages = _messages()
    sent = _sent(name, messages, np.zeros(9, bool))
    assert all((sent[leaf] == messages[leaf]).all() for leaf in messages)


@each_colluding
def test_without_an_honest_message_nothing_changes(name):
    messages = _messages()
    sent = _sent(name, messages, np.ones(9, bool))
    assert all((sent[leaf] == messages[leaf]).all() for leaf in messages)
    lost = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), messages)
    some = jax.tree.map(lambda x, y: x.at[0].set(y[0]), lost, messages)
    sent = _sent(name, some)
    assert all((sent[leaf][0] == messages[leaf][0]).all() for leaf in messages)


@each_colluding
def test_one_honest_message_is_copied_or_reversed(name):
    messages = _messages()
    sent = _flat(_sent(name, messages, np.arange(9) != 4))
    expected, zero = _flat(messages)[4], _flat(_reference())
    if name == "ipm":
        expected = zero - 0.5 * (expected - zero)
    elif name == "ipm_message":
        expected = -10 * expected
    np.testing.assert_allclose(
        sent[np.arange(9) != 4], expected[None] + np.zeros((8, 1))
    )


@pytest.mark.parametrize("name", few({*COLLUDING} - VARIANTS, COLLUDING))
def test_float32_with_a_common_offset_and_odd_scales(name):
    offset = jax.tree.map(lambda x: x + 1000, _messages(jnp.float32))
    reference = jax.tree.map(lambda x: x + 1000, _reference(jnp.float32))
    sent = _sent(name, offset, reference=reference)
    wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (offset, reference))
    exact = _flat(_sent(name, wide[0], reference=wide[1]))
    eps = np.finfo(np.float32).eps  # of the values that are sent, and of differences
    bound = 4 * eps * np.abs(exact).max() + 100 * eps * np.ptp(exact)
    np.testing.assert_allclose(_flat(sent), exact, rtol=0, atol=bound)
    plain, zero = _messages(jnp.float32), _reference(jnp.float32)
    one = _flat(_sent(name, plain, reference=zero))
    for scale in (2.0**70, 2.0**-70):  # whose squares float32 does not have
        large = jax.tree.map(lambda x: x * jnp.float32(scale), (plain, zero))  # noqa: B023
        other = _flat(_sent(name, large[0], reference=large[1]))
        np.testing.assert_allclose(other / scale, one, rtol=1e-5, atol=1e-5)


@each_attack
def test_methods_that_send_nothing(name):
    sent, _ = CASES[name](KEYS, None, None, jnp.asarray(MALICIOUS), None)
    assert sent is None


def _oracle(name):
    """Messages of malicious clients from the definitions, `[D]`, and honest rows."""
    rows, zero = _flat(_messages())[~MALICIOUS], _flat(_reference())
    attack, mean = CASES[name], rows.mean(axis=0)
    start = zero if getattr(attack, "about", "") == "reference" else 0 * zero
    if isinstance(attack, attacks.IPM):
        return start - attack.tau * (mean - start), rows
    if isinstance(attack, attacks.ALIE):
        z = scipy.stats.norm.ppf((6 - 2) / 6) if attack.z is None else attack.z
        sign = 1 if attack.plus else -1
        ddof = 1 if attack.deviation == "sample" else 0
        return mean + sign * z * rows.std(axis=0, ddof=ddof), rows
    if isinstance(attack, attacks.Mimic):
        if attack.victim is not None:
            return rows[attack.victim], rows
        vector = np.linalg.eigh(np.cov(rows.T))[1][:, -1]
        projection = np.sort(np.abs((rows - mean) @ vector))
        assert projection[-1] > 1.001 * projection[-2]
        return rows[np.argmax(np.abs((rows - mean) @ vector))], rows
    step = {
        "unit": -(mean - start) / np.linalg.norm(mean - start),
        "sign": -np.sign(mean - start),
        "std": -rows.std(axis=0),
    }[attack.direction]
    low, high = 0.0, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        if _excess(attack, rows, mean + middle * step) <= 0:
            low = middle
        else:
            high = middle
    return mean + low * step, rows


def _excess(attack, rows, message):
    """How far the constraint of Min-Max or Min-Sum is violated."""
    distance = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    own = np.linalg.norm(rows - message, axis=1)
    if isinstance(attack, attacks.MinMax):
        return own.max() - distance.max()
    return (own**2).sum() - (distance**2).sum(axis=1).max()


@each_colluding
def test_formulas_against_numpy(name):
    sent = _flat(_sent(name, _messages()))[MALICIOUS]
    expected, rows = _oracle(name)
    np.testing.assert_allclose(sent, expected[None] + np.zeros((3, 1)), atol=1e-12)
    if name.startswith("min"):  # and the constraint is tight
        assert abs(_excess(CASES[name], rows, sent[0])) < 1e-11


@pytest.mark.parametrize(("n", "f"), [(51, 24), (50, 20), (10, 4), (10, 1), (9, 3)])
def test_the_largest_shift_against_scipy(n, f):
    needed = n // 2 + 1 - f
    expected = scipy.stats.norm.ppf((n - f - needed) / (n - f))
    found = alie.largest_shift(jnp.asarray(n - f, float), jnp.asarray(f, float))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("n", "f", "share"), [(10, 8, 0.5), (10, 5, 0.8), (2, 1, 0.5)])
def test_the_largest_shift_of_majorities_and_pairs_is_finite(n, f, share):
    found = alie.largest_shift(jnp.asarray(n - f, float), jnp.asarray(f, float))
    np.testing.assert_allclose(found, scipy.stats.norm.ppf(share), atol=1e-12)


def test_two_honest_messages_tie_and_the_lower_row_is_copied():
    messages, malicious = _messages(), ~np.isin(np.arange(9), (3, 6))
    for order in (np.arange(9), ORDER):  # in which row 6 is before row 3, or after it
        moved = jax.tree.map(lambda x: x[order], messages)  # noqa: B023
        sent = _flat(_sent("mimic", moved, malicious[order]))
        victim = np.flatnonzero(~malicious[order])[0]
        np.testing.assert_array_equal(sent[malicious[order]], sent[[victim] * 7])


def test_a_fixed_victim_beyond_the_honest_clients_is_the_last_one():
    attack = attacks.Mimic(victim=99)
    sent, _ = _send(attack, KEYS, None, _messages(), MALICIOUS, _reference())
    np.testing.assert_array_equal(sent["w"][0], sent["w"][8])


@pytest.mark.parametrize(
    ("attack", "factor"),
    [
        (attacks.SignFlip(scale=2.0), -2),
        (attacks.SignFlip(scale=3.0, about="reference"), -3),
        (attacks.Scaling(), 100),
        (attacks.Scaling(factor=-5.0, about="message"), -5),
    ],
)
def test_multiples(attack, factor):
    messages, zero = _messages(), _flat(_reference())
    zero = zero[None] if attack.about == "reference" else 0
    sent, _ = _send(attack, KEYS, None, messages, MALICIOUS, _reference())
    expected = factor * (_flat(messages)[MALICIOUS] - zero)
    found = _flat(sent)[MALICIOUS] - zero
    np.testing.assert_allclose(found, expected, rtol=1e-12)


MANY = jax.random.split(jax.random.key(11, impl="threefry2x32"), 20000)
ALL = np.ones(20000, bool)
TWO = {"a": jnp.full((20000, 2), 2.0), "b": jnp.full((20000,), -1.0)}


@pytest.mark.parametrize("about", ["message", "received"])
def test_random_sign_flip_draws_one_half_normal_per_client(about):
    attack = attacks.SignFlip(std=0.3, about=about)
    received = {"a": jnp.full(2, 4.0), "b": jnp.asarray(-2.0)}
    sent, _ = _send(attack, MANY, None, TWO, ALL, received)
    multiplier = -np.asarray(sent["a"]) / (2 if about == "message" else 4)
    assert (multiplier[:, 0] == multiplier[:, 1]).all()
    other = sent["b"] if about == "message" else sent["b"] / 2
    np.testing.assert_allclose(multiplier[:, 0], other, rtol=1e-14)
    law = scipy.stats.halfnorm(scale=0.3)
    assert scipy.stats.kstest(multiplier[:, 0], law.cdf).pvalue > 1e-3


def test_the_same_value_is_one_normal_draw_per_client():
    sent, _ = _send(attacks.SameValue(std=0.5), MANY, None, TWO, ALL, None)
    assert (sent["a"] == sent["b"][:, None]).all()
    law = scipy.stats.norm(scale=0.5)
    assert scipy.stats.kstest(np.asarray(sent["b"]), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("about", ["message", "reference"])
def test_gaussian_moments_and_independence(about):
    attack = attacks.Gaussian(std=0.5, about=about)
    reference = {"a": jnp.asarray([3.0, -7.0]), "b": jnp.asarray(1.0)}
    sent, _ = attack(MANY, None, TWO, ALL, reference)
    columns = np.column_stack([np.asarray(sent["a"]), np.asarray(sent["b"])])
    if about == "reference":
        columns = columns - np.array([[3.0, -7.0, 1.0]])
    for column in columns.T:
        law = scipy.stats.norm(scale=0.5)
        assert scipy.stats.kstest(column, law.cdf).pvalue > 1e-3
    correlation = np.corrcoef(columns.T) - np.eye(3)
    assert np.abs(correlation).max() < 4 / np.sqrt(20000)


@pytest.mark.parametrize(
    ("name", "field"),
    [("sign_flip", "scale"), ("scaling", "factor"), ("ipm", "tau"), ("alie", "z")],
)
def test_strengths_are_traced(name, field):
    @jax.jit
    def send(attack):
        return attack(KEYS, None, _messages(), MALICIOUS, _reference())[0]["b"][0]

    zero, one, two = (
        send(dataclasses.replace(CASES[name], **{field: jnp.float32(s)}))
        for s in (0.0, 1.0, 2.0)
    )
    np.testing.assert_allclose(two - zero, 2 * (one - zero), rtol=1e-12)
    assert send._cache_size() == 1


def test_strengths_of_releases_and_papers():
    assert attacks.SameValue.official() == attacks.SameValue(std=0.01)
    assert attacks.Gaussian.official() == attacks.Gaussian(std=1.0)
    assert attacks.SignFlip.official() == attacks.SignFlip(std=1.0, about="received")
    assert {a().std ** 2 for a in (attacks.SameValue, attacks.Gaussian)} == {0.1}
    assert attacks.Scaling().factor == 100


def test_min_max_moves_the_server_to_where_numpy_says():
    bad = np.flatnonzero(MALICIOUS)
    problem = with_malicious(problems.random_quadratics(9), *bad)
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=problems.full_gradient_steps(1, 1.0)),
        aggregator=fp.aggregators.Mean(),
        attack=attacks.MinMax(direction="unit"),
    )
    states, _, _ = problems.run(process, problem, 1)
    rows, start = problem.estimates[~MALICIOUS], states.server["theta"][0]
    moved = 9 * states.server["theta"][1] - rows.sum(axis=0)  # three equal messages
    mean = rows.mean(axis=0)
    step = (moved / 3 - mean) / np.linalg.norm(moved / 3 - mean)
    np.testing.assert_allclose(
        step, (start - mean) / np.linalg.norm(start - mean), atol=1e-12
    )
    assert abs(_excess(process.attack, rows, moved / 3)) < 1e-12


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: attacks.SignFlip(scale=-1.0), "scale .* at least 0, got -1.0"),
        (lambda: attacks.SignFlip(std=float("nan")), "std"),
        (lambda: attacks.SignFlip(about="refrence"), "did you mean 'reference'"),
        (lambda: attacks.Gaussian(std=-2.0), "std .* got -2.0"),
        (lambda: attacks.Gaussian(about="received"), "allowed: message, reference"),
        (lambda: attacks.SameValue(std=-1.0), "std .* at least 0"),
        (lambda: attacks.Scaling(factor=float("inf")), "factor"),
        (lambda: attacks.IPM(tau=-0.1), "tau .* at least 0"),
        (lambda: attacks.ALIE(deviation="smaple"), "did you mean 'sample'"),
        (lambda: attacks.ALIE(plus=1), "plus to be true or false"),
        (lambda: attacks.MinMax(direction="signs"), "did you mean 'sign'"),
        (lambda: attacks.MinSum(about="x"), "center of the attack"),
        (lambda: attacks.Mimic(victim=-1), "victim .* at least 0"),
    ],
)
def test_wrong_attacks_are_named(make, match):
    with pytest.raises(checks.InputError, match=match):
        make()


def test_every_attack_has_a_case():
    assert {type(attack) for attack in CASES.values()} == set(
        fp.algorithms.ATTACKS.values()
    )
