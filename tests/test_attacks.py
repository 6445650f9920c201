"""Attacks change malicious rows only; their draws belong to the client."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedjax_pfl import attacks, checks

KEYS = jax.random.split(jax.random.key(3, impl="threefry2x32"), 6)
_send = jax.jit(lambda attack, *arguments: attack(*arguments))
MALICIOUS = jnp.array([True, False, True, False, False, True])


def _messages(dtype=jnp.float64):
    rng = np.random.default_rng(0)
    tree = {"w": rng.normal(size=(6, 3, 2)), "b": rng.normal(size=(6, 4))}
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def _reference(dtype=jnp.float64):
    return {"w": jnp.ones((3, 2), dtype), "b": jnp.full(4, -2, dtype)}


CASES = [
    attacks.SignFlip(),
    attacks.SignFlip(std=0.3, about="reference"),
    attacks.Gaussian(),
]


@pytest.mark.parametrize("attack", CASES, ids=str)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_only_malicious_rows_change(attack, dtype):
    messages = _messages(dtype)
    messages["b"] = messages["b"].at[1, 0].set(jnp.nan)  # honest rows stay as they are
    sent, state = _send(attack, KEYS, None, messages, MALICIOUS, _reference(dtype))
    assert state is None and attack.init(messages) is None
    for name, before in messages.items():
        before, after = np.asarray(before), np.asarray(sent[name])
        assert after.dtype == before.dtype
        assert before[~MALICIOUS].tobytes() == after[~MALICIOUS].tobytes()
        assert (before[MALICIOUS] != after[MALICIOUS]).all()


@pytest.mark.parametrize("attack", CASES, ids=str)
def test_permuting_clients_permutes_messages(attack):
    order = jnp.array([4, 2, 0, 5, 1, 3])
    messages = _messages()
    sent, _ = _send(attack, KEYS, None, messages, MALICIOUS, _reference())
    moved = jax.tree.map(lambda x: x[order], messages)
    arguments = (KEYS[order], None, moved, MALICIOUS[order], _reference())
    other, _ = _send(attack, *arguments)
    for name in messages:
        assert (sent[name][order] == other[name]).all()


@pytest.mark.parametrize("attack", CASES, ids=str)
def test_nobody_malicious_changes_nothing(attack):
    messages = _messages()
    nobody = jnp.zeros(6, bool)
    sent, _ = _send(attack, KEYS, None, messages, nobody, _reference())
    assert all((sent[name] == messages[name]).all() for name in messages)


def test_sign_flip_is_a_negative_multiple():
    messages = _messages()
    sent, _ = _send(attacks.SignFlip(scale=2.0), KEYS, None, messages, MALICIOUS, None)
    expected = -2 * np.asarray(messages["w"])[MALICIOUS]
    np.testing.assert_array_equal(np.asarray(sent["w"])[MALICIOUS], expected)


def test_sign_flip_about_the_reference_reverses_the_update():
    messages, reference = _messages(), _reference()
    attack = attacks.SignFlip(scale=3.0, about="reference")
    sent, _ = _send(attack, KEYS, None, messages, MALICIOUS, reference)
    for name, leaf in messages.items():
        update, changed = (
            leaf - reference[name][None],
            sent[name] - reference[name][None],
        )
        np.testing.assert_allclose(
            changed[MALICIOUS], -3 * update[MALICIOUS], rtol=1e-12
        )


def test_random_sign_flip_draws_one_half_normal_per_client():
    keys = jax.random.split(jax.random.key(11, impl="threefry2x32"), 20000)
    messages = {"a": jnp.full((20000, 2), 2.0), "b": jnp.full((20000,), -1.0)}
    attack = attacks.SignFlip(std=0.3)
    sent, _ = _send(attack, keys, None, messages, jnp.ones(20000, bool), None)
    multiplier = -np.asarray(sent["a"]) / 2
    assert (multiplier[:, 0] == multiplier[:, 1]).all()
    np.testing.assert_allclose(multiplier[:, 0], sent["b"], rtol=1e-14)
    law = scipy.stats.halfnorm(scale=0.3)
    assert scipy.stats.kstest(multiplier[:, 0], law.cdf).pvalue > 1e-3


def test_gaussian_moments_and_independence():
    keys = jax.random.split(jax.random.key(11, impl="threefry2x32"), 20000)
    messages = {"a": jnp.zeros((20000, 2)), "b": jnp.zeros((20000,))}
    sent, _ = attacks.Gaussian(std=0.5)(
        keys, None, messages, jnp.ones(20000, bool), None
    )
    columns = np.column_stack([np.asarray(sent["a"]), np.asarray(sent["b"])])
    for column in columns.T:
        law = scipy.stats.norm(scale=0.5)
        assert scipy.stats.kstest(column, law.cdf).pvalue > 1e-3
    correlation = np.corrcoef(columns.T) - np.eye(3)
    assert np.abs(correlation).max() < 4 / np.sqrt(20000)


def test_strengths_are_traced():
    messages = _messages()

    @jax.jit
    def send(attack):
        return attack(KEYS, None, messages, MALICIOUS, None)[0]["b"]

    one, two = (send(attacks.SignFlip(scale=jnp.float32(s))) for s in (1.0, 2.0))
    np.testing.assert_allclose(two[0], 2 * one[0], rtol=1e-12)
    assert send._cache_size() == 1


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: attacks.SignFlip(scale=-1.0), "scale .* at least 0, got -1.0"),
        (lambda: attacks.SignFlip(std=float("nan")), "std"),
        (lambda: attacks.SignFlip(about="refrence"), "did you mean 'reference'"),
        (lambda: attacks.Gaussian(std=-2.0), "std .* got -2.0"),
    ],
)
def test_wrong_attacks_are_named(make, match):
    with pytest.raises(checks.InputError, match=match):
        make()


def test_registry():
    assert attacks.ATTACKS == {
        "sign_flip": attacks.SignFlip,
        "gaussian": attacks.Gaussian,
    }
