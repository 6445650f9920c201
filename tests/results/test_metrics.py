"""Order of metrics and models, and names of clients, settings and folders."""

import numpy as np

from fedjax_pfl.results import history, metrics, plain_files, selection


def test_accuracy_is_the_headline_and_the_personal_model_stands_for_a_method():
    assert metrics.headline(["loss", "accuracy"]) == "accuracy"
    assert metrics.headline(["loss", "accuracy"], "loss") == "loss"
    assert metrics.judge(["global", "hybrid (validation)", "personal"]) == "personal"


def test_less_loss_is_better_and_nan_is_the_worst():
    assert [metrics.sign(n) for n in ("loss", "uniform_sharpe", "my_error")] == [
        *(-1, 1, -1)
    ]
    assert metrics.score("loss", 2.0) == -2.0
    assert metrics.score("accuracy", float("nan")) == -np.inf


def test_means_are_over_clients_that_count_and_have_a_value():
    values, counts = np.array([1.0, np.nan, 4.0]), np.array([True, True, False])
    assert metrics.mean(values, counts) == 1.0
    assert np.isnan(metrics.mean(values, np.zeros(3, bool)))


def test_names_are_shortened():
    names = ["algorithm.lam", "a.local.learning_rate", "a.fine_tune.learning_rate"]
    assert selection.short(names) == [
        *("lam", "local learning_rate", "fine_tune learning_rate")
    ]
    assert plain_files.plain_name("../My Method") == "my-method"
    assert plain_files.plain_name("...") == "unnamed"
    clients = ["ann", "bob", "eve", "joe", "zoe"]
    assert history._listed([3]) == "client 3"
    assert history._listed(clients) == "clients ann, bob, eve and 2 more"
