"""Budgets of searches: how many settings they pay for, and what is spent."""

import collections
import itertools
import math
import re
import types

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.engine import budgets, simulation, stopping, tuning
from fedjax_pfl.engine.options import Options
from tests.engine import breaking, specs
from tests.lanes import wide

KEY = jax.random.key(0, impl="threefry2x32")
SPEC = specs.validated()
PROCESS = fp.FederatedProcess(
    algorithm=fp.Ditto(local=fp.SGD(learning_rate=0.1, batch_size=8, epochs=2))
)
RANGE = {"algorithm.lam": tuning.Range(0.01, 10)}


def search(budget, **changes):
    options = {"space": RANGE, "budget": budget, "seeds": range(2), "metric": "loss"}
    options |= {"progress": False, "execution": "vmap", "eval_every": 1} | changes
    process = options.pop("process", PROCESS)
    return tuning.tune(KEY, process, fp.LogisticRegression(), SPEC, 9, **options)


def gradients():
    """Gradients of examples in a round: two solvers, two epochs each."""
    return 2 * 2 * int(np.asarray(SPEC.build().train.num_examples).sum())


@settings(max_examples=100, deadline=None, database=None)
@given(
    *(st.integers(1, 40), st.integers(2, 4), st.integers(1, 9)),
    *(st.integers(1, 4), st.integers(1, 3)),
)
def test_rounds_of_a_search_are_those_that_the_rule_leaves(
    count, eta, least, every, brackets
):
    rule = stopping.Halving(eta=eta, min_rounds=least, brackets=brackets)
    options = Options(num_rounds=9, eval_every=every, stop_when=rule)
    points = [{"algorithm.lam": float(k), "seed": 0} for k in range(count)]
    watch = stopping.watch(rule, points, 9)
    rng = np.random.default_rng(count)
    for done in [*range(every, 9, every), 9]:
        watch.see(done, rng.random(count))
    ends = np.where(watch.stopped_at < 0, 9, watch.stopped_at)
    assert tuning.rounds_of(count, options) == ends.sum()


@pytest.mark.parametrize("strategy", ["halving", wide("hyperband"), wide("random")])
def test_rounds_pay_for_as_many_settings_as_fit(strategy):
    tuned = search(fp.engine.Rounds(50), strategy=strategy)
    assert tuned.rounds <= 50
    if strategy == "random":
        assert tuned.rounds == 2 * 9 * (50 // 18)
    # One setting more is above the budget.
    rule = None if strategy == "random" else tuned.watched
    options = Options(num_rounds=9, eval_every=1, stop_when=rule)
    assert 2 * tuning.rounds_of(len(tuned.trials()), options) == tuned.rounds
    assert 2 * tuning.rounds_of(len(tuned.trials()) + 1, options) > 50
    assert f"{tuned.rounds:,} rounds" in str(tuned)


def test_gradients_are_those_of_the_federation():
    cost = gradients()
    in_rounds = search(fp.engine.Rounds(40), strategy="random")
    tuned = search(fp.engine.Gradients(40 * cost), strategy="random")
    assert tuned.gradients == tuned.rounds * cost
    assert tuned.trials().equals(in_rounds.trials())
    assert f"{tuned.gradients:,.0f} gradients" in str(tuned)


LISTS = {"algorithm.lam": [0.1, 1.0], "algorithm.local.learning_rate": [0.1, 0.3, 1.0]}
PROGRAMS = {"algorithm.lam": (0.01, 10), "algorithm.local.epochs": [1, 2]}


def strategy_of(name):
    """A strategy by its name; of Optuna with a new sampler."""
    if name != "optuna":
        return name
    samplers = pytest.importorskip("optuna").samplers
    return fp.engine.Optuna(samplers.TPESampler(seed=0), batch_size=3)


@pytest.mark.parametrize(
    "strategy", ["halving", "optuna", *map(wide, ("random", "hyperband", "grid"))]
)
@pytest.mark.parametrize(
    ("space", "budget"),
    [(LISTS, fp.engine.Rounds(60)), wide(PROGRAMS, fp.engine.Gradients(15_000))],
    ids=["lists", "programs"],
)
def test_no_search_exceeds_its_budget_or_tries_a_setting_twice(strategy, space, budget):
    strategy = strategy_of(strategy)
    tuned = search(budget, strategy=strategy, space=space, seeds=[0])
    assert 0 < (tuned.gradients or tuned.rounds) <= budget.count
    points = [tuple(p.values()) for g in tuned.result.groups for p in g.points]
    assert len(set(points)) == len(points) == len(tuned.trials())


@pytest.mark.parametrize("strategy", ["random", "halving", "optuna"])
def test_short_lists_are_searched_whole(strategy):
    tuned = search(
        None, strategy=strategy_of(strategy), space=LISTS, num_settings=9, seeds=[0]
    )
    points = {tuple(p.values())[:2] for g in tuned.result.groups for p in g.points}
    assert points == set(itertools.product(*LISTS.values()))
    assert "The lists have no other settings." in str(tuned)
    assert len(tuned.trials()) == 6


@pytest.mark.wide
def test_a_budget_counts_settings_that_compete_apart():
    # The clip is no field of the method: settings of one clip compete.
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=SOLVER), transforms=(fp.ClipNorm(norm=1.0),)
    )
    space = {
        "algorithm.local.learning_rate": (0.01, 1.0),
        "transforms.0.norm": [0.5, 1.0, 2.0],
    }
    tuned = search(fp.engine.Rounds(60), process=process, space=space, seeds=[0])
    assert tuned.rounds <= 60
    assert len(tuned.trials()) > 3


SOLVER = fp.SGD(learning_rate=0.1, batch_size=8)


@pytest.mark.parametrize(
    ("algorithm", "times", "rate"),
    [
        # No client has a whole batch, so that each step takes all of its examples.
        (fp.PFedMe(num_steps=3, inner_steps=5), 3 * 5, "learning_rate"),
        (fp.algorithms.PerFedAvg(num_steps=4), 4 * 2, "learning_rate"),
        wide(fp.algorithms.APFL(local=SOLVER), 2, "local.learning_rate"),
        wide(fp.FedPG(), 1, "local.learning_rate"),
        (fp.algorithms.Centralized(local=SOLVER), 1, "local.learning_rate"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_methods_with_minibatches_of_their_own_count_gradients(algorithm, times, rate):
    cost = times * int(np.asarray(SPEC.build().train.num_examples).sum())
    tuned = search(
        fp.engine.Gradients(40 * cost),
        process=fp.FederatedProcess(algorithm=algorithm),
        space={f"algorithm.{rate}": (0.01, 0.1)},
        strategy="random",
    )
    assert tuned.gradients == tuned.rounds * cost <= 40 * cost
    (group,) = tuned.result.groups
    assert group.per_round["gradient_evaluations"][0, 0] == cost


@pytest.mark.wide
def test_a_loss_of_a_line_search_counts_as_a_third_of_a_gradient():
    process = fp.FederatedProcess(algorithm=fp.FedPG(search=fp.algorithms.Armijo()))
    tuned = search(
        fp.engine.Gradients(4_000),
        process=process,
        space={"algorithm.gamma": (0.5, 1.0)},
        strategy="random",
        seeds=[0],
    )
    (group,) = tuned.result.groups
    first = {name: values[0, 0] for name, values in group.per_round.items()}
    counts = np.asarray(SPEC.build().train.num_examples)
    assert first["loss_evaluations"] == first["trials"] * counts.sum() > 0
    cost = math.ceil(first["gradient_evaluations"] + first["loss_evaluations"] / 3)
    assert tuned.gradients == tuned.rounds * cost


@pytest.mark.wide
def test_programs_have_their_own_gradients():
    space = RANGE | {"algorithm.local.epochs": [1, 2]}
    cost = gradients()
    budget = fp.engine.Gradients(80 * cost)
    tuned = search(budget, space=space, strategy="random")
    expected = 0
    for group in tuned.result.groups:
        for point, end in zip(group.points, group.ends, strict=True):
            expected += end * cost * point["algorithm.local.epochs"] // 2
    assert tuned.gradients == expected
    assert 80 * cost - 18 * cost < tuned.gradients <= 80 * cost


def test_a_search_whose_time_is_up_returns_what_it_has():
    tuned = search(fp.engine.Minutes(1e-9), num_settings=9)
    ended = collections.Counter(tuned.result.status)
    assert ended == {"dropped at round 1": 12, "stopped at round 1": 6}
    assert tuned.unfinished == 6
    assert "The time was up, with 6 trainings unfinished" in str(tuned)
    assert tuned.best["algorithm.lam"] == tuned.trials()["algorithm.lam"][0]


@pytest.mark.wide
def test_minutes_add_settings_until_the_time_is_up(monkeypatch):
    seconds = itertools.count(0, 20)  # at the start, and after every batch
    clock = types.SimpleNamespace(perf_counter=lambda: next(seconds) + compiled[0])
    compiled, run = [0.0], simulation.run_groups

    def timed(planned, options, **changes):
        result = run(planned, options, **changes)
        compiled[0] += sum(group.compile_seconds for group in result.groups)
        return result

    monkeypatch.setattr(tuning, "time", clock)
    monkeypatch.setattr(simulation, "run_groups", timed)
    tuned = search(fp.engine.Minutes(0.8), num_settings=4, strategy="halving")
    lams = [setting["algorithm.lam"] for setting in tuning.draw(RANGE, 12)]
    tried = [p["algorithm.lam"] for group in tuned.result.groups for p in group.points]
    assert list(dict.fromkeys(tried)) == lams and len(tuned.result.groups) == 3
    assert tuned.unfinished == 0


@pytest.mark.wide
def test_the_best_of_a_list_is_what_was_in_the_list():
    participations = [fp.UniformCohort(size=3), fp.AllClients()]
    space = RANGE | {"participation": participations}
    tuned = search(None, space=space, num_settings=4, seeds=[0], strategy="random")
    assert tuned.process.participation in participations
    assert tuned.best["participation"] == tuned.process.participation


@pytest.mark.wide
def test_a_search_with_a_budget_resumes(tmp_path):
    checkpoints = fp.Checkpoints(tmp_path / "search", min_seconds=0)

    budget = fp.engine.Rounds(60)
    with pytest.raises(InterruptedError):
        search(budget, checkpoints=checkpoints, callbacks=[breaking.Stop(at=3)])
    again, whole = search(budget, checkpoints=checkpoints), search(budget)
    for one, other in zip(whole.result.groups, again.result.groups, strict=True):
        for name in one.metrics:
            np.testing.assert_array_equal(one.metrics[name], other.metrics[name])
    assert again.best == whole.best


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("3000rounds", budgets.Rounds(3000)),
        ("2e6gradients", budgets.Gradients(2e6)),
        ("2.5 min", budgets.Minutes(2.5)),
    ],
)
def test_budgets_are_read(text, budget):
    assert budgets.parse(text) == budget


@pytest.mark.parametrize("text", ["", "3000", "rounds", "-3rounds", "0min", "3hours"])
def test_what_is_no_budget_is_refused(text):
    sentence = f"such as 3000rounds, 2e6gradients or 10min, got {re.escape(repr(text))}"
    with pytest.raises(checks.InputError, match=sentence):
        budgets.parse(text)


@fp.pytree_dataclass
class Silent(fp.FedAvg):
    """A method that does not say how many gradients its clients take."""

    def client_update(self, view, down, client, model):
        client, upload, _ = super().client_update(view, down, client, model)
        return client, upload, {}


@pytest.mark.parametrize(
    ("budget", "changes", "message"),
    [
        # Three settings: one round of each, and eight more of the one that is left.
        (budgets.Rounds(21), {}, "at least 22 rounds, .* got 21"),
        (budgets.Rounds(17), {"strategy": "random"}, "at least 18 rounds, .* got 17"),
        (budgets.Gradients(1), {}, f"{22 * gradients():,} gradients, .* got 1"),
        (budgets.Rounds(99), {"num_settings": 3}, "got both: 3 and Rounds"),
        (3000, {}, "fp.engine.Rounds.3000., .* got 3000"),
        (
            budgets.Gradients(10**9),
            {"process": fp.FederatedProcess(algorithm=Silent())},
            "rounds or minutes for Silent",
        ),
        (
            budgets.Minutes(1),
            {"checkpoints": fp.Checkpoints("nowhere")},
            "rounds or gradients with checkpoints",
        ),
        (budgets.Minutes(1), {"models_to": "nowhere"}, "Expected models_to=None"),
    ],
)
def test_wrong_budgets_get_one_sentence(budget, changes, message):
    if "process" in changes:
        changes = changes | {"space": tuning.search_space(changes["process"])}
    with pytest.raises(checks.InputError, match=message):
        search(budget, **changes)


@pytest.mark.parametrize("kind", [budgets.Rounds, budgets.Gradients, budgets.Minutes])
@pytest.mark.parametrize("count", [0, -1, float("nan"), "many"])
def test_a_budget_is_a_number_above_zero(kind, count):
    with pytest.raises(checks.InputError, match="Expected count"):
        kind(count)
