"""Ranking of methods: which setting counts, what is printed, who is best."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.results import answer, comparison, html_text, selection, shares
from tests import histories


def two_settings():
    """Two settings whose global model validates best at the one that is personal's
    worst, as it would decide if the best of all models, or the hybrid, chose.
    """
    points = tuple({"seed": s, "algorithm.lam": x} for x in (1.0, 3.0) for s in (0, 1))
    made = histories.make_history(points=points)
    personal, shared = (made.models.index(n) for n in ("personal", "global"))
    validation = made.data.index("validation")
    accuracy, loss = (made.metrics[n].copy() for n in ("accuracy", "loss"))
    accuracy[:, -1, :, validation] = 0.5
    accuracy[:2, -1, personal, validation] = 0.6  # lam = 1
    accuracy[2:, -1, shared, validation] = 0.9  # lam = 3, and so its hybrid's
    loss[:, -1, :, validation] = 1.0
    loss[:2, -1, personal, validation] = 2.0
    made = histories.with_metrics(made, accuracy=accuracy, loss=loss)
    return histories.make_result(made)


def test_settings_are_chosen_by_the_personal_model_and_the_headline():
    best = selection.best_settings(two_settings())
    assert best["algorithm.lam"].tolist() == [1.0]


def test_ranking_is_by_the_mean_over_seeds():
    ranked = comparison.rank(two_settings())
    assert ranked is not None
    (environment,) = ranked.environments
    values = [row.value for row in environment.rows]
    assert values == sorted(values, reverse=True) and len(values) > 1
    assert all("lam = 1" in row.setting for row in environment.rows)


def of_methods(*names, rng_seeds=range(9), **options):
    """Histories of methods for three seeds."""
    points = tuple({"seed": s} for s in range(3))
    return [
        histories.make_history(points=points, algorithm=name, rng_seed=k, **options)
        for name, k in zip(names, rng_seeds, strict=False)
    ]


def with_accuracies(points, models, values):
    """Histories of methods with their accuracies."""
    for name, accuracy in values.items():
        made = histories.make_history(points=points, models=models, algorithm=name)
        yield histories.with_metrics(made, accuracy=accuracy)


def of_two(gap):
    """Two methods, one above the other by a gap for every seed and client."""
    points = tuple({"seed": s} for s in range(3))
    low = histories.make_history(points=points, models=("global",))
    rng = np.random.default_rng(0)
    accuracy = np.broadcast_to(
        rng.uniform(0.4, 0.5, (3, 1, 1, 1, 1)), low.metrics["accuracy"].shape
    ).astype(np.float32)
    noise = np.array([-1e-3, 0.0, 1e-3], np.float32).reshape(3, 1, 1, 1, 1)
    values = {"FedAvg": accuracy, "Scaffold": accuracy + np.float32(gap) + noise}
    return histories.make_result(*with_accuracies(points, ("global",), values))


def against_local():
    """Ditto beside Local, which one client of one seed gains, and another loses with
    in both seeds; and how many clients there are.
    """
    points = ({"seed": 0}, {"seed": 1})
    made = histories.make_history(points=points, models=("personal",))
    local = made.metrics["accuracy"].copy()
    local[..., 0, :] = 0.5
    other = local.copy()
    other[0, -1, 0, 0, 0] = 0.75  # one client of one seed gains,
    other[:, -1, 0, 0, 1] = 0.25  # another loses with both
    values = {"Local": local, "Ditto": other}
    made_of = with_accuracies(points, ("personal",), values)
    return histories.make_result(*made_of), local.shape[-1]


def test_shares_of_clients_count_who_gains_and_loses():
    result, clients = against_local()
    ranked = comparison.rank(result)
    assert ranked is not None
    assert ranked.measures[-2:] == ("loss variance", "worse than Local")
    rows = {row.algorithm: row for row in ranked.environments[0].rows}
    assert clients == 20  # of whom one is worse off, for both seeds
    assert rows["Ditto"].cells[-1] == "5 % [5, 5]" and rows["Local"].cells[-1] == "–"
    table = result.table()
    table = table[table["stat"].isin(("worse than Local", "better than Local"))]
    assert set(table["algorithm"]) == {"Ditto"} and set(table["when"]) == {"last"}
    assert set(table["data"]) == {"own test"} and set(table["status"]) == {"ok"}
    by_seed = table.pivot(index="seed", columns="stat", values="value")
    assert by_seed["worse than Local"].tolist() == [1 / 20, 1 / 20]
    assert by_seed["better than Local"].tolist() == [1 / 20, 0.0]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_shares_agree_with_counting(metric):
    options = {"num_clients": 7, "metrics": (metric,), "malicious": (2,)}
    names = ("FedAvg", "Local", "Ditto", "Flame")
    made = of_methods(*names[:3], **options)
    lost = {"rng_seeds": [3], "diverged_at": [-1, 8, -1]}
    made += of_methods("Flame", **options, **lost)
    found = shares.of_clients(histories.make_result(*made))
    assert set(found["population"]) == {"honest"}
    own = {  # [seed, model, client] on test data in the last round
        name: record.metrics[metric][:, -1, :, 0].astype(float)
        for name, record in zip(names, made, strict=True)
    }
    honest = np.arange(7) != 2
    sides = {"FedAvg": 1, "Local": 0}
    count = 0
    for row in found[found["model"].isin(histories.MODELS)].itertuples():
        m = histories.MODELS.index(row.model)
        values = own[row.algorithm][row.seed, m, honest]
        others = own[row.reference][row.seed, sides[row.reference], honest]
        more, less = np.mean(values > others), np.mean(values < others)
        expected = (more, less) if metric == "accuracy" else (less, more)
        assert (row.better, row.worse) == pytest.approx(expected)
        count += 1
    # Four methods of two models against two references, but for these themselves, and
    # for the seed in which a method diverged.
    assert count == (4 * 2 * 2 - 2) * 3 - 2 * 2


def test_shares_are_against_the_best_setting_of_the_reference():
    points = tuple({"seed": 0, "algorithm.lam": x} for x in (1.0, 3.0))
    local = histories.make_history(points=points, algorithm="Local", num_clients=5)
    accuracy = local.metrics["accuracy"].copy()
    accuracy[:, -1, 0, 1] = np.array([[0.4], [0.6]])  # validation prefers lam = 3
    accuracy[:, -1, 0, 0] = np.array([[0.9], [0.3]])
    local = dataclasses.replace(local, metrics={"accuracy": accuracy})
    other = histories.make_history(points=({"seed": 0},), num_clients=5)
    values = np.full_like(other.metrics["accuracy"], 0.5)
    other = dataclasses.replace(other, metrics={"accuracy": values})
    found = shares.of_clients(histories.make_result(local, other))
    flame = found[(found["algorithm"] == "Flame") & (found["model"] == "personal")]
    assert flame["better"].tolist() == [1.0]
    first = found[(found["algorithm.lam"] == 1.0) & (found["model"] == "personal")]
    assert first["better"].tolist() == [1.0]  # Local's other setting is no reference


def test_texts_are_at_most_a_hundred_characters_wide():
    names = ("FedAvg", "Local", "Ditto", "A method of a rather long name")
    lines = str(histories.make_result(*of_methods(*names))).splitlines()
    assert max(map(len, lines[:-1])) <= 100  # the last one is a sentence
    assert sum("worse than FedAvg" in line for line in lines) == 1
    heads = [line for line in lines if line.startswith("  method")]
    assert len(heads) > 1
    for name in names:
        assert sum(line[2:].startswith(name) for line in lines) >= 4


def test_printed_results_name_the_best_and_how_sure_that_is():
    text = str(of_two(0.1))
    assert "The global model of Scaffold has the best mean accuracy" in text
    # Student's t with two degrees of freedom: 4.3027 * 0.001 / sqrt(3) = 0.0025.
    assert "ahead of the global model of FedAvg (+0.1000 [+0.0975, +0.1025])" in text
    starred = [line for line in text.splitlines() if line.startswith("*")]
    assert len(starred) == 1 and "Scaffold" in starred[0]
    assert "not clearly ahead of" in str(of_two(0.001))
    same = of_methods("FedAvg", "Scaffold", rng_seeds=(0, 0))
    said = str(histories.make_result(*same)).splitlines()[-1]
    assert "and equal to the hybrid model of FedAvg." in said


@pytest.mark.parametrize(
    ("tried", "best", "words"),
    [
        ((0.1, 1.0, 10.0), 0, "range: lam (0.1 to 10) of Flame."),
        ((0.1, 1.0, 10.0), 1, None),
        ((0.1, 1.0), 0, None),  # where each is an end
    ],
)
def test_values_at_the_end_of_a_range_are_said(tried, best, words):
    points = tuple({"seed": s, "algorithm.lam": x} for x in tried for s in (0, 1))
    made = histories.make_history(points=points)
    accuracy = made.metrics["accuracy"].copy()
    accuracy[..., made.data.index("validation"), :] = 0.5
    accuracy[2 * best : 2 * best + 2, ..., made.data.index("validation"), :] = 0.9
    made = histories.with_metrics(made, accuracy=accuracy)
    (environment,) = comparison.rank(histories.make_result(made)).environments
    assert ("Chosen at the end" in environment.conclusion) == (words is not None)
    assert words is None or words in environment.conclusion


@pytest.mark.wide
def test_privacy_is_a_text_beside_methods_without_noise():
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=6)
    noise = (fp.ClipNorm(norm=1.0), fp.GaussianNoise(multiplier=2.0, delta=1e-3))
    made = [
        fp.grid(
            jax.random.key(0),
            fp.FederatedProcess(
                algorithm=algorithm,
                aggregator=fp.aggregators.Mean(),
                transforms=transforms,
            ),
            fp.models.Quadratic(),
            spec,
            {"seed": [0, 1]},
            num_rounds=2,
        )
        for algorithm in (fp.FedAvg(), fp.FedProx())
        for transforms in ((), noise)
    ]
    result = results.Result.merge(made)
    ranked = comparison.rank(result)
    assert ranked is not None
    place = comparison.titles_of(ranked).index("epsilon")
    (epsilon,) = set(result.privacy()["epsilon"])
    found = set()
    for environment in ranked.environments:
        cells = [row[place] for row in comparison.rows_of(ranked, environment)]
        assert len(set(cells)) == 1 < len(cells)
        found |= set(cells)
    assert found == {"–", f"{epsilon:.3g}"}
    assert f"{epsilon:.3g}" in str(result)


def test_merged_results_have_all_groups():
    low, high = of_two(0.1).groups
    one, other = (histories.make_result(group) for group in (low, high))
    assert str(results.Result.merge([one, other])) == str(of_two(0.1))
    for wrong in ([], [one, low]):
        with pytest.raises(checks.InputError, match="Expected one Result or more"):
            results.Result.merge(wrong)


def _tuned(num_validation, num_clients=20):
    points = [
        {"algorithm.lam": lam, "seed": seed} for lam in (0.1, 1.0) for seed in (0, 1)
    ]
    record = histories.make_history(points=points, num_clients=num_clients)
    counts = np.zeros((len(points), num_clients), int)
    counts[:, : len(num_validation)] = num_validation
    is_missing = (counts == 0)[:, None, None, None] & (np.arange(2) == 1)[:, None]
    values = {n: np.where(is_missing, np.nan, v) for n, v in record.metrics.items()}
    record = dataclasses.replace(record, num_validation=counts, metrics=values)
    return histories.make_result(record)


def test_a_setting_is_not_chosen_where_few_clients_validate():
    compared = comparison.rank(_tuned([5] * 9))
    (environment,) = compared.environments
    sentence = "No setting was chosen: only 9 of 20 clients have validation examples."
    assert environment.conclusion == sentence and not compared.is_paired
    assert {row.setting for row in environment.rows} == {
        "Flame (lam = 0.1)",
        "Flame (lam = 1)",
    }
    assert sentence in str(_tuned([5] * 9))


def test_a_choice_by_few_validation_examples_is_said():
    compared = comparison.rank(_tuned([1] * 20))
    (environment,) = compared.environments
    assert len({row.setting for row in environment.rows}) == 1
    few = "Settings were chosen with only 20 validation examples."
    assert environment.conclusion.endswith(few)
    (environment,) = comparison.rank(_tuned([5] * 20)).environments
    assert "validation examples" not in environment.conclusion


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ((), None),
        (((0, 3), (1, 3)), "undefined on the test examples of 1 client (ann),"),
        (((0, 3), (1, 3), (0, 7)), "undefined in some seeds on the test examples of 2"),
        ([(g, i) for g in (0, 1) for i in range(7)], "7 clients (c0, c1, c2, ann, c4"),
    ],
)
def test_clients_whose_examples_leave_a_metric_undefined_are_named(lost, words):
    names = np.array([[f"c{i}" for i in range(20)]] * 2, object)
    names[:, 3] = "ann"
    made = dataclasses.replace(histories.make_history(), client_names=names)
    accuracy = made.metrics["accuracy"].copy()
    for point, client in lost:
        accuracy[point, ..., client] = np.nan  # the loss is there
    result = histories.make_result(histories.with_metrics(made, accuracy=accuracy))
    (environment,) = comparison.rank(result).environments
    said = environment.conclusion
    assert ("undefined" in said) == (words is not None)
    assert words is None or words in said


def _row(algorithm, model, gaps, worse=()):
    differences = tuple(
        gap and comparison.Difference(gap[0], 0.0, "", gap[1]) for gap in gaps
    )
    return comparison.Row(
        algorithm, algorithm, model, 0.9, (), differences, dict(worse)
    )


_LOSE = {"FedAvg": 0.04, "Local": 0.041}
_BETTER, _LEFT, _OPEN = (0.032, "better"), (-0.02, "worse"), (0.01, "")


@pytest.mark.parametrize(
    ("gaps", "worse", "steps", "said"),
    [
        (
            (None, _OPEN, _BETTER, (0.0318, "better")),
            _LOSE,
            {"Ditto": 20.0, "FedAvg": 10.0},
            "Yes: models of their own that learn from others gain 3.2 points over one"
            " model and over training alone; 4 % of clients lose; Ditto takes 2 times"
            " the steps of FedAvg; which method gives it is open.",
        ),
        (
            (None, _BETTER, _BETTER, (0.05, "better")),
            {"FedAvg": 0.04, "Local": 0.1},
            {},
            "Yes: models of their own that learn from others gain 3.2 points over one"
            " model and 5.0 points over training alone; clients that"
            " lose: 4 % to one model, 10 % to training alone; Ditto gives the most.",
        ),
        (
            (None, _OPEN, _LEFT, _BETTER),
            _LOSE,
            {},
            "No: one model is 2.0 points ahead of models of their own that learn from"
            " others.",
        ),
        (
            (None, _OPEN, _BETTER, _OPEN),
            _LOSE,
            {},
            "Open: models of their own that learn from others gain 3.2 points over one"
            " model, but not clearly over training alone.",
        ),
        (
            (None, _OPEN, _OPEN, (0.0, "equal")),
            _LOSE,
            {},
            "Open: models of their own that learn from others are not clearly ahead of"
            " one model or training alone.",
        ),
    ],
)
def test_the_question_is_answered_first(gaps, worse, steps, said):
    others = [("Flame", "personal"), ("FedAvg", "global"), ("Local", "personal")]
    rows = [_row("Ditto", "personal", gaps, worse)]
    rows += [_row(*name, (None,) * 4) for name in others]
    assert answer.answer(rows, "accuracy", steps) == said
    assert answer.answer(rows[:3], "accuracy", steps) == ""


def test_notebooks_show_the_answer_and_a_table():
    shown = of_two(0.1)._repr_html_()
    assert shown.count("<table>") == 1 and "has the best mean accuracy" in shown
    assert "<b>Scaffold</b>" in shown and "<b>FedAvg</b>" not in shown
    assert "&lt;" in html_text.paragraph("<i>")


def test_a_ranking_begins_with_the_answer():
    made = of_methods("FedAvg", "Local", "Ditto")
    (environment,) = comparison.rank(histories.make_result(*made)).environments
    assert environment.conclusion.startswith(("Yes: ", "No: ", "Open: "))
