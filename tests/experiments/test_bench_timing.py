"""What a round of the bench costs, and how it is sampled."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench import machine, report, timing, transforms, workloads
from fedjax_pfl.round import privacy

SHAPE = (4, 4)


# What a round costs.


def test_costs_of_softmax_regression():
    # 784 x 10 weights: logits and their gradient, 2 operations per weight each.
    assert workloads.WORKLOADS["W1"].flops_per_example == 2 * 2 * 7840
    assert workloads.WORKLOADS["W1"].steps_per_round == 10 * 56
    assert workloads.WORKLOADS["W1"].flops_per_round == 56_000 * 2 * 2 * 7840
    assert workloads.WORKLOADS["W2"].steps_per_round == 1000 * 5
    grid = workloads.WORKLOADS["W4"]
    assert grid.num_points == 32
    assert grid.steps_per_round == 32 * 10 * 6
    assert grid.flops_per_round == 32 * 5600 * 2 * 2 * 7840


def test_a_round_reads_examples_once_and_moves_what_clients_keep_twice():
    small = workloads.softmax("S", "", (10, 11, 29), 5, peers=(), shape=SHAPE)
    kept = (
        3 * (16 * 10 + 10) + 2
    )  # three models, and two numbers of the client's weight
    size = jnp.zeros(()).dtype.itemsize
    assert small.bytes_per_round == 50 * 16 + 2 * 3 * size * kept
    none = workloads.cohorts((10, 11, 29), 2, shape=SHAPE)  # FedAvg keeps nothing
    assert none.bytes_per_round == pytest.approx(50 * 2 / 3 * 16)


def test_the_floor_is_products_and_passes():
    run = {"flops_per_round": 6e9, "bytes_per_round": 4e9, "matmul_gflops": 100.0}
    assert report.floor(run, 20.0) == pytest.approx(0.06 + 0.2)
    assert report.floor(run | {"bytes_per_round": None}, 20.0) is None


def test_costs_of_cohorts():
    warm = workloads.cohorts((10, 11, 29), 2, shape=SHAPE)
    assert warm.steps_per_round == pytest.approx((1 + 2 + 3) * 2 / 3)
    assert warm.flops_per_round == pytest.approx(50 * 2 / 3 * 2 * 2 * 160)


def test_costs_of_convolutions():
    model = workloads.BenchCNN(filters=(2, 3), hidden=4)
    # 16 -> 12 -> 6 -> 2 -> 1; the first layer needs no gradient of its inputs.
    first = 2 * 2 * 12 * 12 * (5 * 5 * 1) * 2
    others = 3 * 2 * (2 * 2 * (5 * 5 * 2) * 3 + 3 * 4 + 4 * 10)
    assert workloads.cnn_flops(model, (16, 16, 1), 10) == first + others


def test_the_network_has_as_many_parameters_as_its_title_says():
    workload = workloads.WORKLOADS["W3"]
    small = workloads.cnn((2,)).spec.build()
    model = workload.model.for_federation(small)
    params = jax.eval_shape(model.init, jax.random.key(0))
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    assert count == 259_914
    assert f"{count:,}" in workload.title


def test_transformed_workloads_differ_from_plain_ones_in_transforms_only():
    assert len(transforms.TRANSFORMED) == 8
    for name, row in transforms.TRANSFORMED.items():
        plain = workloads.WORKLOADS[name[:2]]
        assert row.process.transforms and not plain.process.transforms
        assert (row.spec, row.model) == (plain.spec, plain.model)
        without = dataclasses.replace(row.process, transforms=())
        privacy.check(row.process)
        privacy.check_bands(row.process, len(row.spec.dataset.sizes))
        if name.endswith("banded"):
            assert without.algorithm.local == plain.process.algorithm.local
            assert row.cohort_size == plain.cohort_size // 4
        else:
            assert without == plain.process


def test_data_are_images_that_can_be_learned():
    dataset = workloads.Generated((300, 100)).load(
        data_dir=None, seed=0, num_clients=None
    )
    assert dataset.x.dtype == np.uint8 and dataset.x.shape == (400, 28, 28)
    assert 0.7 < (dataset.x == 0).mean() < 0.85
    assert np.bincount(dataset.client).tolist() == [300, 100]
    x = dataset.x.reshape(400, -1) / 255
    means = np.stack([x[dataset.y == label].mean(axis=0) for label in range(10)])
    nearest = ((x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == dataset.y).mean() > 0.8


# Clocks and samples.


class Clock:
    """Time that passes only when somebody works."""

    def __init__(self):
        self.now = self.own = self.all = 0.0

    def wall(self):
        return self.now

    def cpu(self):
        return self.own

    def busy(self):
        return self.all

    def work(self, seconds, others=0.0):
        self.now += seconds * (1 + others)
        self.own += seconds
        self.all += seconds * (1 + others) ** 2  # all of the time, and others' own


def test_contenders_take_turns_and_short_calls_are_repeated():
    clock, order = Clock(), []

    def call(name, seconds):
        order.append(name)
        clock.work(seconds)

    calls = {"a": lambda: call("a", 1.0), "b": lambda: call("b", 0.125)}
    turns = []
    found = timing.interleave(calls, 3, clock, lambda: turns.append(1))
    assert order == ["a", "b"] + ["a", "b", "b"] * 3  # 0.2 s are two calls of b
    assert len(turns) == 3
    assert [sample.wall for sample in found["a"]] == [1.0] * 3
    assert [sample.wall for sample in found["b"]] == [0.125] * 3
    assert [sample.cpu for sample in found["b"]] == [0.125] * 3


def test_disturbed_samples_are_repeated_and_do_not_count():
    clock, seen = Clock(), iter([0, 1, 0, 1, 0, 0, 0])
    found = timing.interleave({"a": lambda: clock.work(1.0, next(seen))}, 3, clock)
    assert [sample.wall for sample in found["a"]] == [2, 1, 2, 1, 1]
    times = timing.Times.of(found["a"])
    assert (times.wall, times.low, times.high) == (1, 1, 1)
    assert (times.count, times.total) == (3, 5)


def test_where_all_samples_are_disturbed_the_quietest_third_counts():
    clock, seen = Clock(), iter([0, 3, 1, 2, 3, 3, 3, 2, 3, 3])
    found = timing.interleave({"a": lambda: clock.work(1.0, next(seen))}, 3, clock)
    times = timing.Times.of(found["a"])
    assert times.total == 9
    assert (times.wall, times.least, times.count) == (3, 2, 3)


def test_extra_samples_end_after_a_while(monkeypatch):
    monkeypatch.setattr(timing, "MORE_SECONDS", 5.0)
    clock = Clock()
    found = timing.interleave({"a": lambda: clock.work(1.0, others=1)}, 2, clock)
    assert len(found["a"]) == 3


def test_quartiles():
    samples = [timing.Sample(wall, 1.0, 0.0) for wall in (5, 1, 4, 2, 3)]
    times = timing.Times.of(samples)
    assert times.wall == 3
    assert times.low == 2 and times.high == 4
    assert times.least == 1


def test_the_clocks_of_the_system_go_on():
    clock = timing.Clock(machine.cpus())
    before = clock.wall(), clock.cpu(), clock.busy()
    sum(range(10**6))
    after = clock.wall(), clock.cpu(), clock.busy()
    assert after[0] > before[0] and after[1] > before[1] and after[2] >= before[2]
