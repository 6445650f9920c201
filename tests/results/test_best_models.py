"""Models of the best round on validation data, of all clients or of each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from tests.lanes import few

KEY = jax.random.key(0)
# So large steps that losses rise and fall from round to round.
SGD = fp.SGD(learning_rate=3.0, epochs=1, batch_size=10)
ALGORITHMS = {
    "ditto": fp.Ditto(local=SGD, personal=SGD),
    "local": fp.Local(local=SGD),
    "fedavg": fp.FedAvg(local=SGD, fine_tune=fp.SGD(learning_rate=0.1)),
}


def setting(name, rounds=6, **options):
    spec = fp.FederationSpec("digits", fp.DirichletLabels(), num_clients=5)
    process = fp.FederatedProcess(algorithm=ALGORITHMS[name])
    args = (KEY, process, fp.LogisticRegression(), spec, {"seed": [0, 1]}, rounds)
    options = {"eval_every": 1, "progress": False} | options
    return fp.grid(*args, **options)


def validation(result, model):
    """Accuracies `[G, E, N]` on own validation data."""
    (group,) = result.groups
    d = group.data.index("validation")
    return group.metrics["accuracy"][:, :, group.models.index(model), d]


def found(folder, **columns):
    return fp.load_models(folder).find(**columns)


@pytest.fixture(scope="module")
def until(tmp_path_factory):
    """Folders with the models of trainings that end earlier, each trained once."""

    @functools.cache
    def folder(name, rounds):
        place = tmp_path_factory.mktemp("until") / "models"
        setting(name, rounds=rounds, models_to=place)
        return place

    return folder


def same(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


@pytest.mark.parametrize("name", few(["ditto"], ALGORITHMS))
def test_the_best_models_are_those_of_a_training_that_ends_there(name, until, tmp_path):
    result = setting(name, models_to=tmp_path / "best", models_of="best")
    for model in result.groups[0].models:
        means = validation(result, model).mean(axis=-1)
        for seed, best in enumerate(means.argmax(axis=1).tolist()):
            kept = found(tmp_path / "best", seed=seed, model=model)
            assert kept.about["rounds"] == best
            if best:
                other = found(until(name, best), seed=seed, model=model)
                assert same(kept.params, other.params)


@pytest.mark.parametrize("name", ["ditto", "local"])
def test_each_client_has_the_model_of_its_own_best_round(name, until, tmp_path):
    result = setting(name, models_to=tmp_path / "each", models_of="best-of-each")
    values = validation(result, "personal")
    rounds = values.argmax(axis=1)
    assert len(np.unique(rounds)) > 2  # or this is the case above
    for seed in (0, 1):
        kept = found(tmp_path / "each", seed=seed, model="personal")
        assert kept.about["rounds"] == rounds[seed].tolist()
        for client, best in enumerate(rounds[seed].tolist()):
            if best:
                other = found(until(name, best), seed=seed, model="personal")
                assert same(kept.of(client), other.of(client))


def test_interrupted_trainings_keep_what_was_best(tmp_path):
    class Failing(fp.Callback):
        def evaluated(self, evaluation):
            if evaluation.round == 4:
                raise RuntimeError("interrupted")

    options = {"models_of": "best-of-each"}
    setting("ditto", models_to=tmp_path / "whole", **options)
    options["checkpoints"] = tmp_path / "checkpoints"
    with pytest.raises(RuntimeError):
        setting("ditto", models_to=tmp_path / "a", callbacks=[Failing()], **options)
    setting("ditto", models_to=tmp_path / "again", **options)
    for row in fp.load_models(tmp_path / "whole").table.to_dict("records"):
        columns = {"seed": row["seed"], "model": row["model"]}
        whole, again = (found(tmp_path / n, **columns) for n in ("whole", "again"))
        assert whole.about == again.about and same(whole.params, again.params)


def until_round_6(number):
    return jnp.where(number < 6, 0.1, jnp.inf)


def test_a_model_that_diverges_later_is_kept_as_it_was(tmp_path):
    rising = fp.SGD(learning_rate=until_round_6, per_round=True)
    process = fp.FederatedProcess(algorithm=fp.Local(local=rising))
    federation = fp.load_federation("digits", fp.IID(), num_clients=3)
    result = fp.simulate(
        *(KEY, process, fp.MLP(widths=(8,)), federation, 12),
        eval_every=1,
        progress=False,
        models_to=tmp_path / "models",
        models_of="best",
    )
    assert result.status[0].startswith("diverged")
    kept = found(tmp_path / "models", model="personal")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(kept.params))
    assert 0 < kept.about["rounds"] < 12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_clients": "participants"}, "the same clients, on validation data"),
        ({"evaluate_on": ("test",)}, "on test"),
        ({"models_of": "worst"}, "best-of-each"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence(options, words, tmp_path):
    options = {"models_of": "best"} | options
    with pytest.raises(fp.InputError, match=words):
        setting("local", models_to=tmp_path / "models", **options)
    assert not (tmp_path / "models").exists()


def test_without_validation_examples_there_is_no_best_round(tmp_path):
    federation = fp.load_federation("digits", num_clients=3, validation_fraction=0.0)
    process = fp.FederatedProcess(algorithm=fp.Local())
    with pytest.raises(fp.InputError, match="clients with validation examples"):
        fp.simulate(
            *(KEY, process, fp.LogisticRegression(), federation, 2),
            progress=False,
            models_to=tmp_path / "models",
            models_of="best",
        )


@pytest.mark.wide
def test_streamed_trainings_keep_the_same_models(tmp_path):
    federation = fp.load_federation("digits", fp.DirichletLabels(), num_clients=5)
    solver = fp.SGD(learning_rate=0.1)  # with large steps rounding decides
    process = fp.FederatedProcess(algorithm=fp.Ditto(local=solver, personal=solver))
    args = (KEY, process, fp.LogisticRegression(), federation, 6)
    for name, call in (("a", fp.simulate), ("b", fp.simulate_streamed)):
        call(
            *args,
            eval_every=1,
            eval_clients=3,
            progress=False,
            models_to=tmp_path / name,
            models_of="best-of-each",
        )
    a, b = (found(tmp_path / name, model="personal") for name in "ab")
    rounds = [dict(zip(m.clients, m.about["rounds"], strict=True)) for m in (a, b)]
    assert rounds[0] == rounds[1]
    for client in a.clients:
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7),
            a.of(client),
            b.of(client),
        )
