"""Programs of the bench's trainings as an accelerator gets them, read as text."""

import dataclasses
import functools
import math
import re

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from experiments.bench import adapters, workloads
from fedjax_pfl import aggregators
from fedjax_pfl.engine import groups, resident
from fedjax_pfl.engine.options import Options

TRAININGS = workloads.WORKLOADS | adapters.ADAPTERS
FEWER = 64
"""Clients in place of hundreds: programs are as long for all of them."""
TENSOR = r"tensor<((?:\d+x)*)[a-z]\w*>"


@pytest.fixture
def on_gpu(monkeypatch):
    """Plans that are made for one GPU, in the floats of users."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with jax.enable_x64(False):
        yield


def group_of(name):
    """The group of a training, with fewer clients, of whom as many take part."""
    training = TRAININGS[name]
    dataset = training.spec.dataset
    dataset = dataclasses.replace(dataset, sizes=dataset.sizes[:FEWER])
    spec = dataclasses.replace(training.spec, dataset=dataset)
    return dataclasses.replace(training, spec=spec).group()


def text_of(group, execution="auto", platform="cuda"):
    """The lowered rounds of a group for a platform, and their cohort."""
    planned = groups.plan(group, Options(num_rounds=2, execution=execution))
    program = resident.Resident(planned, are_shapes=True)
    run = functools.partial(resident.segment, planned.plan)
    active = np.ones(len(group.points), bool)
    traced = jax.jit(run).trace(
        *program._with(program.like), active, *resident.rounds()
    )
    return traced.lower(lowering_platforms=(platform,)).as_text()


def results(text, operation="dot_general"):
    """Shapes of the results of an operation."""
    lines = re.findall(rf".*stablehlo\.{operation}\b.*", text)
    last = [re.findall(TENSOR, line)[-1] for line in lines]
    return [tuple(int(n) for n in shape.split("x") if n) for shape in last]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", TRAININGS)
def test_rounds_meet_neither_the_host_nor_float64(on_gpu, name, platform):
    text = text_of(group_of(name), platform=platform)
    assert "stablehlo.while" in text and "stablehlo.dot_general" in text
    assert not re.search(r"callback|infeed|outfeed|stablehlo\.(send|recv)", text)
    assert not re.search(r"[<x]f64>", text)


@pytest.mark.parametrize("name", ["W1", "W2", "W5", "W6"])
def test_products_of_a_step_have_all_clients_of_the_cohort(on_gpu, name):
    group = group_of(name)
    cohort = group.processes[0].participation.cohort_size(
        group.federations[0].num_clients
    )
    with_all = step_products(text_of(group, "vmap"))
    assert with_all and {shape[0] for shape in with_all} == {cohort}
    assert not step_products(text_of(group, "chunk=1"))


def step_products(text):
    """Shapes of the products of examples, `[K, B, classes]` and of their gradients."""
    return [shape for shape in results(text) if len(shape) > 2]


def test_auto_is_a_vmap_or_chunks_of_many_clients(on_gpu):
    options = Options(num_rounds=2)
    plans = {n: str(groups.plan(group_of(n), options).plan) for n in TRAININGS}
    ragged = plans.pop("W5")
    assert set(plans.values()) == {"vmap"}
    assert ragged == "vmap" or int(ragged.removeprefix("chunk=")) >= 8


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_cohort_reads_no_states_of_others(on_gpu, platform):
    group = group_of("W1")
    size = 4
    processes = [
        dataclasses.replace(process, participation=fp.UniformCohort(size=size))
        for process in group.processes
    ]
    text = text_of(dataclasses.replace(group, processes=processes), platform=platform)
    kernels = [s for s in results(text, "gather") if s[-2:] == (10, 784)]
    assert kernels and all(math.prod(shape[:-2]) == size for shape in kernels)


@pytest.mark.parametrize(
    "rule", [aggregators.Krum(num_malicious=1), fp.GeometricMedian()]
)
def test_products_of_distances_are_at_highest_precision(on_gpu, rule):
    group = group_of("W1")
    processes = [
        dataclasses.replace(process, aggregator=rule) for process in group.processes
    ]
    text = text_of(dataclasses.replace(group, processes=processes), "vmap")
    count = group.federations[0].num_clients
    products = re.findall(r".*stablehlo\.dot_general.*", text)
    gram = [
        p for p in products if re.search(rf"-> tensor<(1x)?{count}x{count}xf32>", p)
    ]
    assert gram and all("precision = [HIGHEST, HIGHEST]" in p for p in gram)
