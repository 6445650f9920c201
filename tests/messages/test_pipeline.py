"""The way of a message: order, attackers, memory, bytes, commands."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import attacks, testing
from fedjax_pfl.command import presets
from fedjax_pfl.command.presets.experiment import apply_settings
from fedjax_pfl.core import byte_counts, checks
from fedjax_pfl.messages import QSGD, LowRank, RandomK, SignScale, TopK
from tests import problems
from tests.lanes import wide
from tests.messages.private import SGD, process
from tests.setups import with_malicious

KEY = jax.random.key(0, impl="threefry2x32")
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def test_rounds_with_error_feedback_are_a_loop_in_numpy():
    problem, dim, kept = problems.waves(dim=10), 10, 3
    feedback = TopK(fraction=kept / dim, error_feedback=True)
    whole = process(feedback, who=fp.UniformCohort(size=3))
    states, infos, _ = problems.run(whole, problem, 8)
    w, memory = states.server["theta"][0], np.zeros((6, dim))
    for number in range(8):
        received = []
        for i in infos.cohort[number]:
            x = problem.descend(i, w, w, 0.0, 2) - w + memory[i]
            sent = np.where(np.abs(x) >= np.sort(np.abs(x))[-kept], x, 0)
            memory[i] = x - sent
            received.append(w + sent)
        w = np.mean(received, axis=0)
        np.testing.assert_allclose(states.server["theta"][number + 1], w, **CLOSE)
        (kept_memory,) = states.rows["transforms"]
        np.testing.assert_allclose(kept_memory["theta"][number + 1], memory, **CLOSE)
    bytes_of_one = -(-(kept * 64 + kept * 4) // 8)
    assert (byte_counts.total(infos.bytes_up) == 3 * bytes_of_one).all()
    assert (byte_counts.total(infos.bytes_down) == 3 * 8 * dim).all()


@fp.pytree_dataclass
class Marked(fp.core.Transform):
    """A transform whose steps do not commute with another's."""

    factor: Any = 1.0
    shift: Any = 0.0

    def send(self, key, memory, message):
        return jax.tree.map(lambda x: self.factor * x + self.shift, message), None

    def fit(self, key, message):
        return jax.tree.map(lambda x: 10 * self.factor * x + self.shift, message)

    def receive(self, key, message):
        return jax.tree.map(lambda x: (x - self.shift) / self.factor, message)


@fp.pytree_dataclass
class Double(fp.core.Attack):
    """Malicious clients send twice their message, from the reference on."""

    def __call__(self, key, state, messages, malicious, reference):
        def doubled(rows, point):
            return jnp.where(malicious[:, None], 2 * rows - point[None], rows)

        return jax.tree.map(doubled, messages, reference), state


def test_the_server_goes_back_through_what_clients_did_and_attackers_did_not():
    problem = with_malicious(problems.waves(), 1, 4)
    first, second = Marked(factor=2.0, shift=1.0), Marked(factor=5.0, shift=-3.0)
    plain, _, _ = problems.run(process(), problem, 1)
    honest, _, _ = problems.run(process(first, second), problem, 1)
    np.testing.assert_allclose(honest.server["theta"], plain.server["theta"], **CLOSE)
    attacked, _, _ = problems.run(process(first, second, attack=Double()), problem, 1)
    w = plain.server["theta"][0]
    received = []
    for i in range(6):
        x = problem.descend(i, w, w, 0.0, 2) - w
        if i in (1, 4):
            x = 2 * (5 * (2 * x + 1) - 3)  # the attack sees what clients have sent
            x = 50 * (20 * x + 1) - 3  # what fits, in order
            x = ((x + 3) / 5 - 1) / 2  # the server, in reverse order
        received.append(w + x)
    np.testing.assert_allclose(
        attacked.server["theta"][1], np.mean(received, axis=0), **CLOSE
    )


@pytest.mark.parametrize(
    "transform",
    [QSGD(levels=3), wide(RandomK(fraction=0.5)), wide(TopK(fraction=0.25))],
)
def test_attackers_are_bound_by_the_encoding_and_change_no_one_elses_message(transform):
    problem = with_malicious(problems.waves(dim=8), 2)
    flame = fp.Flame(local=SGD)
    runs = [
        problems.run(process(transform, algorithm=flame, attack=attack), problem, 1)[0]
        for attack in (None, attacks.Gaussian(std=1.0))
    ]
    start = runs[0].server["theta"][0]
    alone, attacked = (run.rows["messages"]["theta"][1] for run in runs)
    honest = np.arange(6) != 2
    np.testing.assert_allclose(attacked[honest], alone[honest], **CLOSE)
    sent = attacked[2] - start
    if isinstance(transform, QSGD):
        levels = np.abs(sent) / np.abs(sent)[sent != 0].min()
        np.testing.assert_allclose(levels, np.round(levels), atol=1e-9)
    else:
        assert (np.abs(sent) > 1e-12).sum() == int(8 * transform.fraction)


def test_memory_of_a_message_that_is_not_finite_stays():
    class Broken(fp.FedAvg):
        def client_update(self, view, down, client, model):
            client, upload, report = super().client_update(view, down, client, model)
            bad = (view.data.client_id == 3) & (view.round == 1)
            message = jax.tree.map(lambda x: jnp.where(bad, jnp.nan, x), upload.message)
            return client, dataclasses.replace(upload, message=message), report

    broken = fp.pytree_dataclass(Broken)(local=SGD)
    whole = process(
        SignScale(),
        QSGD(levels=2, error_feedback=True),
        algorithm=broken,
        on_nonfinite="drop",
    )
    states, infos, _ = problems.run(whole, problems.waves(), 3)
    assert infos.num_nonfinite.tolist() == [0, 1, 0]
    for memory in states.rows["transforms"]:
        rows = memory["theta"]
        assert np.isfinite(rows).all()
        np.testing.assert_array_equal(rows[2, 3], rows[1, 3])
        assert (rows[2] != rows[1]).any(axis=1).sum() == 5


PAIRS = {
    "fedavg": (fp.FedAvg(), (TopK(fraction=0.4, error_feedback=True), QSGD(levels=3))),
    "flame": (fp.Flame(), (SignScale(),)),
    "fedacs": (fp.FedACS(), (RandomK(fraction=0.4, error_feedback=True),)),
    "fedpg": (fp.FedPG(), (TopK(fraction=0.4, error_feedback=True),)),
}
PROPERTIES = (
    "states_keep_their_layout",
    "randomness_comes_from_keys",
    "absent_clients_are_bit_identical",
    "permuting_clients_permutes_results",
    "loop_reference",
    "chunks_change_rounding_only",
    "a_resumed_grid_is_bit_identical",
    "nonfinite_messages_never_enter",
)
SUBJECTS = {
    name: testing.Subject(algorithm=algorithm, transforms=transforms)
    for name, (algorithm, transforms) in PAIRS.items()
}
OF_ALL = ("states_keep_their_layout", "absent_clients_are_bit_identical")
# The memories of transforms are rows of the round, whatever the method.
IN_EVERY_RUN = {("fedavg", prop) for prop in (*OF_ALL, "chunks_change_rounding_only")}
IN_EVERY_RUN |= {(name, OF_ALL[0]) for name in PAIRS}


@pytest.mark.parametrize(
    ("name", "prop"),
    [
        (name, prop) if (name, prop) in IN_EVERY_RUN else wide(name, prop)
        for name in PAIRS
        for prop in (PROPERTIES if name == "fedavg" else OF_ALL)
    ],
)
def test_methods_keep_their_properties_with_transforms(name, prop):
    testing.check(prop, SUBJECTS[name])


def test_commands_name_transforms_and_their_fields():
    experiment = apply_settings(
        presets.PRESETS["digits"](),
        [
            "algorithm=fedavg",
            "transforms=none,top_k+qsgd",
            "transforms.0.error_feedback=true",
            "transforms.1.levels=1,3",
        ],
    )
    plain, both = experiment.grids
    assert plain.process.transforms == () and not plain.axes
    top, rounded = both.process.transforms
    assert top == TopK(error_feedback=True) and isinstance(rounded, QSGD)
    assert both.axes == {"transforms.1.levels": (1, 3)}
    again = apply_settings(experiment, ["transforms=low_rank"])
    assert {g.process.transforms for g in again.grids} == {(LowRank(),)}
    with pytest.raises(checks.InputError, match="Unknown transform 'topk' .*top_k"):
        apply_settings(presets.PRESETS["digits"](), ["transforms=qsgd+topk"])


def test_wrong_transforms_are_refused():
    with pytest.raises(checks.InputError, match="transforms to be a tuple"):
        fp.FederatedProcess(algorithm=fp.FedAvg(), transforms=QSGD())
    with pytest.raises(checks.InputError, match=r"transforms\.0 to be an object"):
        fp.FederatedProcess(algorithm=fp.FedAvg(), transforms=("top_k",))
    with pytest.raises(checks.InputError, match="the class QSGD instead of QSGD"):
        fp.FederatedProcess(algorithm=fp.FedAvg(), transforms=(QSGD,))
    federation = fp.load_federation("digits", num_clients=4, seed=0)
    for transforms, match in (
        ((TopK(fraction=1e-4),), "TopK to send at least one of the 650 numbers"),
        ((TopK(), LowRank()), "LowRank to see whole messages"),
    ):
        run = (KEY, process(*transforms), fp.LogisticRegression(), federation, 1)
        with pytest.raises(checks.InputError, match=match):
            fp.simulate(*run, progress=False)
