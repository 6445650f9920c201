"""What callbacks are told of trainings, also of those that go on or fail."""

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.engine import callbacks
from tests.engine import specs

KEY = jax.random.key(0)
SPEC = specs.classes()
GRID = {"algorithm": [fp.Flame(), fp.FedAvg()], "seed": [0, 1]}
FEDAVG = {"algorithm": [fp.FedAvg()], "seed": [0, 1]}  # its second program


class Log(fp.Callback):
    """Keeps what it was told; fails at one evaluation, counted from 0, if asked to."""

    def __init__(self, fails_at=None):
        self.fails_at, self.seen, self.ends = fails_at, [], []

    def begin(self, trainings):
        self.trainings = trainings

    def evaluated(self, evaluation):
        if len(self.seen) == self.fails_at:
            raise RuntimeError("the log is full")
        self.seen.append(evaluation)

    def end(self, result):
        self.ends.append(result)

    def rounds(self, group=0):
        return [
            (e.round, e.is_restored) for e in self.seen if e.trainings[0].group == group
        ]


def grid(axes, rounds, *logs, **options):
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=fp.SGD(batch_size=8)))
    return fp.grid(
        *(KEY, process, fp.LogisticRegression(), SPEC, axes, rounds),
        **{"eval_every": 2, "evaluate_on": "test", "callbacks": logs} | options,
        progress=False,
    )


def assert_same_evaluations(one, other):
    assert [e.round for e in one.seen] == [e.round for e in other.seen]
    assert [e.is_last for e in one.seen] == [e.is_last for e in other.seen]
    for a, b in zip(one.seen, other.seen, strict=True):
        np.testing.assert_equal(a.metrics, b.metrics)
        np.testing.assert_array_equal(a.running, b.running)


@pytest.fixture(scope="module")
def whole():
    log = Log()
    return grid(GRID, 4, log), log


def test_one_callback_sees_a_grid(whole):
    result, log = whole
    assert [t.name for t in log.trainings] == [
        "Flame, seed=0",
        "Flame, seed=1",
        "FedAvg, seed=0",
        "FedAvg, seed=1",
    ]
    assert [(t.number, t.group) for t in log.trainings] == [
        *((0, 0), (1, 0), (2, 1), (3, 1))
    ]
    assert log.trainings[1].settings["seed"] == 1
    assert log.trainings[1].settings["algorithm.lam"] == fp.Flame().lam
    assert log.rounds(0) == log.rounds(1) == [(0, False), (2, False), (4, False)]
    assert [e.is_last for e in log.seen] == [False, False, True] * 2
    assert log.ends == [result]


def test_metrics_are_those_of_the_result(whole):
    result, log = whole
    curves = result.curves()
    curves = curves[(curves["data"] == "own test") & (curves["model"] == "personal")]
    told = {
        (training.number, evaluation.round): metrics["personal/test/accuracy"]
        for evaluation in log.seen
        for training, metrics in evaluation.points()
        if training.group == 0
    }
    assert told
    for (number, round), value in told.items():
        row = curves[(curves["seed"] == number) & (curves["round"] == round)]
        row = row[row["metric"] == "accuracy"]
        assert row["value"].item() == pytest.approx(value, rel=1e-12)


def test_headline_names_the_first_metric(whole):
    _, log = whole
    metrics = log.seen[-1].metrics
    mean = metrics["global/test/accuracy"].mean()
    assert log.seen[-1].headline() == f"accuracy: global {mean:.3f}"


@pytest.mark.wide
def test_only_data_that_are_due_are_told():
    log = Log()
    grid({"seed": [0]}, 4, log, eval_every=1, evaluate_on={"test": 1, "validation": 2})
    names = ("accuracy", "balanced_accuracy", "loss", "macro_f1")
    tests = {f"global/test/{name}" for name in names}
    validations = {f"global/validation/{name}" for name in names}
    assert log.seen[2].metrics.keys() == tests | validations
    assert log.seen[3].metrics.keys() == tests


@pytest.mark.wide
def test_points_that_ended_are_not_told_again():
    log = Log()
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=fp.SGD(epochs=3)))
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=4)
    rates = {"algorithm.local.learning_rate": [1e-9, 0.01, 1e200]}
    result = fp.grid(
        *(KEY, process, fp.models.Quadratic(), spec, rates, 3),
        eval_every=1,
        stop_when=fp.StopWhen(patience=1, min_delta=1e-6, metric="loss", data="test"),
        callbacks=[log],
        progress=False,
    )
    (group,) = result.groups
    assert group.stopped_at.tolist() == [1, -1, 1] and group.diverged_at[2] == 1
    told = [
        [e.round for e in log.seen if number in [t.number for t, _ in e.points()]]
        for number in range(3)
    ]
    assert told == [[0, 1], [0, 1, 2, 3], [0]]


@pytest.mark.parametrize("fails_at", [2, 4])
def test_an_error_comes_after_a_checkpoint(fails_at, tmp_path, whole):
    """Checkpoints would not be due for a day: in the first and in the second group."""
    result, log = whole
    options = {"checkpoints": fp.Checkpoints(tmp_path / "run", min_seconds=86_400)}
    failing, beside = Log(fails_at=fails_at), Log()
    with pytest.raises(RuntimeError, match="the log is full"):
        grid(GRID, 4, beside, failing, **options)
    assert failing.ends == beside.ends == [None]
    again = Log()
    resumed = grid(GRID, 4, again, **options)
    assert_same_evaluations(again, log)
    restored = [e.is_restored for e in again.seen]
    assert restored == [True] * (fails_at + 1) + [False] * (5 - fails_at)
    for one, other in zip(resumed.groups, result.groups, strict=True):
        np.testing.assert_equal(one.metrics, other.metrics)
    finished = Log()
    grid(GRID, 4, finished, **options)
    assert_same_evaluations(finished, log)
    assert all(e.is_restored for e in finished.seen)


@pytest.mark.wide
def test_rounds_after_the_last_checkpoint_are_told_again(tmp_path):
    """A process that is killed has told more than its checkpoints hold."""

    class Killed(BaseException):
        pass

    class Kill(fp.Callback):
        def evaluated(self, evaluation):
            if evaluation.round == 4:
                raise Killed

    options = {"checkpoints": fp.Checkpoints(tmp_path / "run", min_seconds=86_400)}
    with pytest.raises(Killed):
        grid({"seed": [0]}, 6, Kill(), **options)
    log, other = Log(), Log()
    grid({"seed": [0]}, 6, log, **options)
    grid({"seed": [0]}, 6, other)
    assert log.rounds() == [(r, False) for r in (0, 2, 4, 6)]
    assert_same_evaluations(log, other)


def test_an_interrupted_training_ends_without_a_result(tmp_path):
    log = Log()
    with pytest.raises(fp.Interrupted):
        grid(FEDAVG, 4, log, max_minutes=1e-9)
    assert log.ends == [None] and log.rounds() == [(0, False)]


def test_an_interruption_says_how_to_go_on(tmp_path):
    class Interrupting(fp.Callback):
        def evaluated(self, evaluation):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="with checkpoints='DIR' the same call"):
        grid(FEDAVG, 2, Interrupting())
    kept = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt, match="goes on from its checkpoints in '.*"):
        grid(FEDAVG, 2, Interrupting(), checkpoints=kept)
    assert len(grid(FEDAVG, 2, checkpoints=kept).status) == 2


def test_all_that_began_end():
    class Refusing(fp.Callback):
        def begin(self, trainings):
            raise RuntimeError("no")

    first, last = Log(), Log()
    with pytest.raises(RuntimeError, match="no"):
        grid(FEDAVG, 2, first, Refusing(), last)
    assert first.ends == [None] and last.ends == []


def test_only_the_first_process_calls(monkeypatch):
    log = Log()
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    grid(FEDAVG, 2, log)
    assert log.seen == [] and log.ends == []


@pytest.mark.parametrize("wrong", [Log, print])
def test_other_objects_are_refused(wrong):
    with pytest.raises(checks.InputError, match="classes derived from fedjax_pfl.Call"):
        grid(FEDAVG, 2, wrong)


def test_a_streamed_training_tells_and_goes_on(tmp_path):
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(), participation=fp.UniformCohort(size=3)
    )
    first, again = Log(), Log()
    run = (KEY, process, fp.LogisticRegression(), SPEC.build(), 4)
    options = {"eval_every": 2, "evaluate_on": ("test",), "progress": False}
    options |= {"checkpoints": fp.Checkpoints(tmp_path / "run", min_seconds=86_400)}
    with pytest.raises(RuntimeError, match="the log is full"):
        fp.simulate_streamed(*run, callbacks=[first, Log(fails_at=1)], **options)
    result = fp.simulate_streamed(*run, callbacks=[again], **options)
    assert first.rounds() == [(0, False), (2, False)] and first.ends == [None]
    assert again.rounds() == [(0, True), (2, True), (4, False)]
    losses = [e.metrics["global/test/loss"].item() for e in again.seen]
    expected = result.groups[0].metrics["loss"].mean(axis=-1).reshape(-1)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert again.ends == [result] and again.seen[-1].is_last


def test_groups_of_one_algorithm_have_different_names():
    def group(points, **config):
        return type("Group", (), {"points": points, "config": config})()

    common = {"algorithm": "FedPlus", "model": "MLP", "federation.dataset": "digits"}
    groups = [
        group([{"algorithm.lam": 0.1}], **common, aggregator="Mean"),
        group([{"algorithm.lam": None}], **common, aggregator="Krum"),
        group([{}], **common | {"federation.dataset": "mnist"}, aggregator="Mean"),
    ]
    assert [t.name for t in callbacks.watch.trainings_of(groups, 5)] == [
        "FedPlus, federation.dataset=digits, algorithm.lam=0.1, aggregator=Mean",
        "FedPlus, federation.dataset=digits, aggregator=Krum",
        "FedPlus, federation.dataset=mnist, aggregator=Mean",
    ]
