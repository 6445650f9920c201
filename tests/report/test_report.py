"""What a report says: tables, captions and charts."""

import dataclasses
import io
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedjax_pfl.report import page, svg, tables
from tests import histories
from tests.figures import test_figures
from tests.report import reports


def comparison(*results):
    return reports.content(*results).headline[0]


def row_of(environment, algorithm, model):
    (found,) = [
        (k, row)
        for k, row in enumerate(environment.rows)
        if (row.algorithm, row.model) == (algorithm, model)
    ]
    return found


def values(result, group, model):
    """Mean accuracies over clients in the last round, by seed, of the first setting."""
    record = result.groups[group]
    found = record.metrics["accuracy"][:, -1, record.models.index(model), 0].mean(-1)
    seeds = [point["seed"] for point in record.points]
    return pd.Series(found.astype(float), seeds)


def test_cells_are_those_of_the_summary_and_intervals_those_of_scipy():
    seeds = tuple({"seed": seed} for seed in (0, 1, 2))
    result = histories.make_result(
        histories.make_history(points=seeds),
        histories.make_history(points=seeds, algorithm="Ditto", rng_seed=1),
    )
    found = comparison(result)
    assert found.measures == ("accuracy", "worst 10 %", "loss variance")
    (environment,) = found.environments
    assert environment.title == "digits, DirichletLabels"
    summary = result.summary().set_index(["algorithm", "model"])
    for row in environment.rows:
        expected = summary.loc[(row.algorithm, row.model), list(found.measures)]
        assert row.cells == tuple(expected)
    models = {"personal", "global", "hybrid (validation)"}  # the oracle is no method
    assert {row.model for row in environment.rows} == models
    number, _ = row_of(environment, "Flame", "global")
    _, row = row_of(environment, "Ditto", "personal")
    gaps = values(result, 1, "personal") - values(result, 0, "global")
    low, high = stats.t.interval(0.95, 2, gaps.mean(), stats.sem(gaps))
    expected = f"{gaps.mean():+.4f} [{low:+.4f}, {high:+.4f}]"
    assert row.differences[number].text == expected
    number, _ = row_of(environment, "Ditto", "personal")
    assert row.differences[number] is None


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_better_is_more_accuracy_or_less_loss(metric):
    seeds = tuple({"seed": seed} for seed in range(4))
    low = histories.make_history(points=seeds, metrics=(metric,), models=("global",))
    low = histories.with_metrics(low, **{metric: low.metrics[metric] / 100})
    high = histories.make_history(
        points=seeds, metrics=(metric,), models=("global",), algorithm="FedAvg"
    )
    found = comparison(histories.make_result(low, high))
    _, row = row_of(found.environments[0], "Flame", "global")
    number, _ = row_of(found.environments[0], "FedAvg", "global")
    assert row.differences[number].text.startswith("-")
    assert row.differences[number].verdict == (
        "better" if metric == "loss" else "worse"
    )
    assert ("Less is better" in found.caption) == (metric == "loss")


def test_the_reference_is_best_on_validation_data_not_on_test_data():
    seeds = tuple({"seed": seed} for seed in (0, 1))
    validates, tests = (
        histories.make_history(points=seeds, models=("global",), algorithm=name)
        for name in ("Validates", "Tests")
    )
    better = validates.metrics["accuracy"].copy()
    better[:, :, :, 1] = 1  # validation
    validates = histories.with_metrics(
        validates, **(validates.metrics | {"accuracy": better})
    )
    better = tests.metrics["accuracy"].copy()
    better[:, :, :, 0] = 1
    tests = histories.with_metrics(tests, **(tests.metrics | {"accuracy": better}))
    found = comparison(histories.make_result(tests, validates))
    (environment,) = found.environments
    assert environment.rows[environment.reference].algorithm == "Validates"
    table = tables.markdown(tables.of_comparison(found))
    assert table.count("| reference |") == 1


def test_one_seed_has_no_interval_and_says_so():
    one = histories.make_history(points=({"seed": 7},))
    found = comparison(histories.make_result(one))
    assert "One seed (7): no intervals" in found.caption
    texts = [d.text for row in found.environments[0].rows for d in row.differences if d]
    assert len(texts) == 6 and all(text.endswith("one pair") for text in texts)
    assert "±" not in "".join(
        c for row in found.environments[0].rows for c in row.cells
    )


def test_diverged_seeds_are_counted_in_the_status():
    record = histories.make_history(diverged_at=[-1, 5])
    content = reports.content(histories.make_result(record))
    (environment,) = content.headline[0].environments
    assert {row.cells[-1] for row in environment.rows} == {"1 of 2 diverged"}
    assert "Seeds that diverged do not count" in content.headline[0].caption
    (curves,) = [s for s in content.sections if s.name == "learning_curves"]
    assert "Seeds that diverged or ended early leave the mean" in curves.caption
    assert all("(1 of 2 lost)" in d.text for d in environment.rows[0].differences[1:])


def test_a_training_from_a_program_knows_no_seed_and_no_partition():
    record = histories.make_history(points=({},))
    config = {n: v for n, v in record.config.items() if n != "federation.partition"}
    record = dataclasses.replace(record, config=config | {"num_rounds": 10})
    content = reports.content(histories.make_result(record))
    assert content.headline[0].environments[0].title == "digits"
    assert "One seed, which is not stored" in content.headline[0].caption
    text = page.render(content)
    assert "None" not in text.partition('<section id="configuration">')[0]
    assert "it was saved from a program" in text


def test_everything_diverged_is_still_a_page():
    record = histories.make_history(diverged_at=[1, 1])
    text = page.render(reports.content(histories.make_result(record)))
    assert "2 of 2 diverged" in text and "no pairs (2 of 2 lost)" in text


def test_tables_say_whose_model_on_which_data_when_and_how_often():
    record = histories.make_history()
    record = dataclasses.replace(record, data=("test", "everybody"))
    content = reports.content(histories.make_result(record))
    own, everybody = content.headline
    assert "all clients on own test data, last round" in own.caption
    assert "2 seeds (0, 1)" in own.caption
    assert "Student's t" in own.caption
    assert "all clients on everybody's test data, last round" in everybody.caption
    assert content.details == ()  # nothing was validated
    names = [section.name for section in content.sections]
    assert names[1:3] == ["learning_curves", "learning_curves_everybody"]
    assert names[0] == "differences"
    content = reports.content(histories.make_result(histories.make_history()))
    (best,) = content.details
    assert "round that is best on validation data" in best.caption


def test_of_an_algorithms_settings_the_best_is_compared_and_all_are_listed():
    content = reports.grid_content()
    own = content.headline[0].environments[0]
    assert len({row.setting for row in own.rows if row.algorithm == "Flame"}) == 1
    (every,) = [table for table in content.details if table.name == "all_settings"]
    settings = {row.setting for row in every.environments[0].rows}
    assert len(settings) == 5 and "Flame (lam = 0.1, kappa = 2)" in settings
    assert not every.is_paired


def figure_of(content, name):
    (section,) = [section for section in content.sections if section.name == name]
    return section.figure


def drawing_of(content, name):
    """Elements of a figure as it is in the page."""
    return reports.Elements(svg.inline(figure_of(content, name), name, name))


def test_the_page_shows_hides_and_tells_what_the_files_show():
    result = reports.grid_result()
    content = reports.grid_content()
    every = result.groups[1].metrics["accuracy"][:, :, 0, 0].mean(-1)
    page = drawing_of(content, "learning_curves")
    names = {a["data-name"] for a in page.with_attribute("data-name")}
    keys = {a["data-key"] for a in page.with_attribute("data-key")}
    assert names == keys and "FedAvg, global" in keys  # lines, bands and points
    methods = {a["data-method"] for a in page.with_attribute("data-key")}
    assert methods == {"Flame", "FedAvg"}
    low, high, mean = every[:, -1].min(), every[:, -1].max(), every[:, -1].mean()
    last = result.groups[1].rounds[-1]
    text = f"round {last}: {mean:.4g}, min to max {low:.4g} to {high:.4g}"
    assert f"FedAvg, global\n{text}" in page.titles()


def test_ids_and_colors_of_a_page_do_not_clash():
    content, text = reports.grid_content(), reports.grid_page()
    elements = reports.Elements(text)
    ids = [a["id"] for _, a in elements.found if "id" in a]
    assert len(ids) == len(set(ids))
    used = [a["xlink:href"] for a in elements.named("use")]
    assert used and {name.removeprefix("#") for name in used} <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(ids)
    styles = [a.get("style", "") for a in elements.with_attribute("data-key")]
    assert "#000000" not in " ".join(styles)  # on a dark page
    assert page.render(reports.content(reports.grid_result())) == text
    for section in content.sections:  # and files do not know of the page
        file = io.StringIO()
        section.figure.savefig(file, format="svg")
        assert "series:" not in file.getvalue()


def test_grid_of_two_fields_has_means_over_seeds():
    result = reports.grid_result()
    axes, *_ = figure_of(reports.grid_content(), "grid").axes
    assert axes.get_title() == "Flame, personal"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "1"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["2", "0.5"]
    record = result.groups[0]
    wanted = [
        p["algorithm.lam"] == 1 and p["algorithm.kappa"] == 2 for p in record.points
    ]
    mean = record.metrics["accuracy"][np.array(wanted), -1, 0, 0].mean()
    assert axes.images[0].get_array()[0, 1] == pytest.approx(mean, rel=1e-6)
    texts = [text.get_text() for text in axes.texts]
    assert f"{mean:.2f}" in texts and len(texts) == 4


def test_attacks_have_one_figure_and_environments_by_fraction():
    fractions = (0.0, 0.2, 0.4)
    made = [
        reports.attacked("SignFlip", fractions, name) for name in ("Flame", "Ditto")
    ]
    content = reports.content(histories.make_result(*made))
    names = [section.name for section in content.sections]
    assert "robustness" in names and "sweep" not in names  # which would show the same
    titles = [e.title for e in content.headline[0].environments]
    assert titles[1] == "digits, DirichletLabels, malicious_fraction = 0.2"
    assert "honest clients" in content.headline[0].caption


def test_losses_alone_have_no_fairness_and_say_what_they_are():
    record = histories.make_history(metrics=("loss",))
    content = reports.content(histories.make_result(record))
    assert "fairness" not in [section.name for section in content.sections]
    assert "mean loss over clients" in content.sections[1].caption
    assert "less is better" in content.sections[0].caption
    assert content.headline[0].measures[0] == "loss"


def test_mixing_methods_show_whom_clients_learn_from():
    result = histories.make_result(test_figures.mixing_history())
    content = reports.content(result)
    assert "collaboration" in [section.name for section in content.sections]
    shares = drawing_of(content, "own_cluster")
    names = [a["data-name"] for a in shares.with_attribute("data-name")]
    assert names == ["Flame", "equal weights"]


def test_values_of_portfolios_are_means_over_parties_and_seeds():
    record = histories.make_history(metrics=("annualized_return", "loss"))
    shape = (2, 2, 20, 5)  # points, models, clients, days
    values = np.random.default_rng(1).uniform(0.5, 2, (3, *shape))
    names = ("value", "uniform_value", "hold_value")
    series = dict(zip(names, values, strict=True))
    record = dataclasses.replace(record, series=series)
    content = reports.content(histories.make_result(record))
    (axes,) = figure_of(content, "values").axes
    line, *beside = axes.lines
    mean, days = values[0, :, 0].mean((0, 1)), range(5)
    np.testing.assert_allclose(line.get_ydata(), mean, rtol=1e-6)
    low = np.quantile(values[0, :, 0], 0.1, axis=1).mean(0)
    (outline,) = axes.collections[0].get_paths()
    edges = outline.vertices
    for day in days:
        at = edges[edges[:, 0] == line.get_xdata()[day], 1]
        assert at.min() == pytest.approx(low[day], rel=1e-6)
    names = [other.get_label() for other in beside]
    assert names == ["equal shares, rebalanced", "bought and held"]
    page = drawing_of(content, "values")
    methods = {a["data-key"]: a["data-method"] for a in page.with_attribute("data-key")}
    assert {methods[name] for name in names} == {""}
    assert "Less is better" not in content.headline[0].caption
    assert content.headline[0].measures[0] == "annualized return"


def test_partitions_of_many_clients_are_histograms():
    record = histories.make_history(num_clients=100)
    sizes = np.arange(100)[None] + np.array([[1], [1]])
    record = dataclasses.replace(record, num_train=sizes)
    content = reports.content(histories.make_result(record))
    classes, sizes, *_ = figure_of(content, "partition").axes
    assert sum(bar.get_height() for bar in sizes.patches) == 100
    assert classes.images[0].get_array().shape == (4, 100)


def test_timing_counts_rounds_of_all_points():
    content = reports.grid_content()
    flame, fedavg = content.facts[-1].parts[0].rows
    assert flame[:6] == ("Flame", "12", "120", "1.5", "0.2", "480")  # 120 / 0.25 s
    assert fedavg[:6] == ("FedAvg", "3", "30", "1.5", "0.2", "120")


def test_communication_has_bytes_and_steps():
    sent = {"bytes_up": 20.0, "bytes_down": 28.0, "client_steps": 3.0}
    record = histories.make_history(config={"parameter_dtype": "float32"})
    per_round = {name: np.full((2, 10), value) for name, value in sent.items()}
    record = dataclasses.replace(record, per_round=per_round)
    unknown = histories.make_history(algorithm="Local")
    losses = {"loss": np.ones((2, 10))}
    unknown = dataclasses.replace(unknown, per_round=losses)
    content = reports.content(histories.make_result(record, unknown))
    first, second = content.facts[-2].parts[0].rows
    assert first == ("Flame", "10", "20", "28", "200", "280", "30")
    assert second == ("Local", "10", *"–––––")


def test_clients_that_never_trained_have_a_table():
    record = histories.make_history(points=({"seed": 0}, {"seed": 1}))
    assert all(table.name != "unseen" for table in reports.grid_content().facts)
    accuracy = np.array([[[0.5, 0.7]], [[0.6, 0.8]]])
    record = dataclasses.replace(
        record, unseen_models=("global",), unseen={"accuracy": accuracy}
    )
    table = reports.content(histories.make_result(record)).facts[0]
    assert table.name == "unseen" and "worst tenth" in table.caption
    # Means 0.6 and 0.7 of two seeds, worst clients 0.5 and 0.6.
    expected = ("Flame", "global", "0.6500 ± 0.0707", "0.5500 ± 0.0707")
    assert table.parts[0].rows == (expected,)
