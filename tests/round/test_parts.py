"""Parts of a user: the same in every execution, and sentences where they do not fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.testing import toy
from tests.lanes import wide

KEY = jax.random.key(3)
LOCAL = fp.SGD(learning_rate=0.1, batch_size=4)


@fp.pytree_dataclass
class Attendance(fp.round.Part):
    """Counts the rounds of clients, and the messages that have arrived."""

    name = "attendance"
    changed_rows = ("attendance",)

    def first_rows(self, at):
        return {"attendance": jnp.zeros_like(at.train.num_examples)}

    def first_memory(self, at, rows):
        return {"arrivals": jnp.zeros((), jnp.int32)}

    def after(self, turn):
        return turn.with_rows(attendance=turn.before["attendance"] + 1)

    def arrive(self, turn):
        return turn.noting(arrivals=(turn.upload.weight > 0).astype(jnp.int32))

    def received(self, exchange, state, turns):
        number = state.memory["arrivals"] + turns.notes["arrivals"].sum()
        return state.with_memory(arrivals=number.astype(jnp.int32)), turns

    def end(self, exchange, state, info):
        rounds = exchange.take(state.rows["attendance"]).sum()
        counts = {"rounds_of_cohort": rounds, "arrivals": state.memory["arrivals"]}
        return state, dataclasses.replace(info, server=info.server | counts)


def process_of(*parts, **fields):
    given = {"participation": fp.UniformCohort(size=3), **fields}
    return fp.FederatedProcess(algorithm=fp.FedAvg(local=LOCAL), parts=parts, **given)


def train(process, simulate=fp.simulate, execution="vmap"):
    given = (KEY, process, fp.LogisticRegression(), toy.make_federation(), 6)
    options = {"eval_every": 3, "evaluate_on": "test", "execution": execution}
    return simulate(*given, progress=False, **options).groups[0]


ATTACKED = {"attack": fp.SignFlip(), "transforms": (fp.TopK(fraction=0.5),)}


@pytest.mark.parametrize(
    ("fields", "executions"),
    [(ATTACKED, ["shard=2"]), wide({}, ["vmap", "chunk=2", "shard=2"])],
    ids=["attacked", "plain"],
)
def test_a_part_of_ones_own_is_the_same_in_every_execution(fields, executions):
    process = process_of(Attendance(), **fields)
    plain = train(process_of(**fields))
    found = [train(process, fp.simulate_streamed)]
    found += [train(process, execution=how) for how in executions]
    for group in found:
        rounds = group.per_round["rounds_of_cohort"][0]
        for name in plain.metrics:
            np.testing.assert_allclose(group.metrics[name], plain.metrics[name], 1e-9)
        np.testing.assert_array_equal(group.times_selected, plain.times_selected)
        np.testing.assert_array_equal(rounds, found[0].per_round["rounds_of_cohort"][0])
        assert group.per_round["arrivals"][0].tolist() == [3, 6, 9, 12, 15, 18]
    # A member of the last cohort counts the rounds in which it has been in one.
    times = plain.times_selected[0, -1]
    assert rounds[0] == 3 and rounds[-1] <= np.sort(times)[-3:].sum()


@fp.pytree_dataclass
class Named(fp.round.Part):
    """A part whose hooks can be wrong."""

    name = "named"
    changed_rows = ("own",)
    rows: str = fp.static_field(default="own")
    size: int | None = fp.static_field(default=None)
    dtype: str = fp.static_field(default="int32")

    def first_rows(self, at):
        count = len(at.train.num_examples) if self.size is None else self.size
        return {self.rows: jnp.zeros(count, jnp.int32)}

    def after(self, turn):
        return turn.with_rows(own=turn.before["own"].astype(self.dtype))


@fp.pytree_dataclass
class Mailbox(fp.round.Part):
    """A part with the name of another."""

    name = "mailbox"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ((Mailbox(),), "Mailbox to have a name of its own among .* got 'mailbox'"),
        ((Attendance(), Attendance()), "Attendance to have a name of its own"),
        ((Named(rows="clients"),), "Named to store its state .* got 'clients'"),
        ((Named(size=3),), "first_rows of Named .* each of 8 clients, .* \\(3,\\)"),
        ((Named(dtype="float32"),), "Named to keep shapes and dtypes of 'own' of ONE"),
        ((fp.TopK(),), "parts.0 to be an object such as a subclass of fp.round.Part"),
    ],
    ids=["name", "twice", "entry", "axis", "structure", "class"],
)
def test_a_part_that_does_not_fit_is_one_sentence(parts, sentence):
    with pytest.raises(fp.InputError, match=f"^Expected {sentence}"):
        train(process_of(*parts))
