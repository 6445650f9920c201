"""Bytes between devices by formulae, and in compiled programs of simulated devices."""

import functools

import jax
import numpy as np
import pytest
import typer.testing

import fedjax_pfl as fp
from experiments import plan
from fedjax_pfl import data
from fedjax_pfl.core import checks
from fedjax_pfl.engine import groups, traffic
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident
from tests.collectives import sent
from tests.lanes import few

DEVICES = 8
CLIENTS = 32


@functools.cache
def federation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(CLIENTS * 5, 300)), np.arange(CLIENTS * 5) % 4
    partition = fp.IID()
    return fp.Federation.from_arrays(x, y, num_clients=CLIENTS, partition=partition)


def planned(algorithm, execution="shard", model=None, **fields):
    process = fp.FederatedProcess(algorithm=algorithm, **fields)
    model = (model or fp.LogisticRegression()).for_federation(federation())
    group = groups.Group(
        points=[{}],
        processes=[process],
        model=model,
        federations=[federation()],
        described=[data.describe(federation())],
        keys=[jax.random.key(0)],
        config=groups.config_of(process, model, federation()),
    )
    options = Options(
        num_rounds=4, eval_every=2, evaluate_on=("test",), execution=execution
    )
    return groups.plan(group, options)


def counted(algorithm, **fields):
    """Bytes that a device sends in a round: of the formula, and of the program."""
    group = planned(algorithm, **fields)
    trainer = Resident(group)
    found = traffic.estimate(group, traffic.Cluster(1, DEVICES))
    text = trainer._program(("segment",)).lowered().compile().as_text()
    return found.sent, sent(text, DEVICES)


COHORT = {"participation": fp.UniformCohort(size=16)}
CASES = {
    "mean": (fp.FedAvg(), {}),
    "cohort": (fp.FedAvg(), COHORT),
    "rows": (fp.Ditto(), COHORT),
    "median": (fp.FedAvg(), {"aggregator": fp.CoordinateMedian()}),
    "krum": (fp.FedAvg(), COHORT | {"aggregator": fp.Krum(num_malicious=2)}),
}


@pytest.mark.parametrize("name", few(("rows",), CASES))
def test_bytes_of_a_round_are_those_of_its_program(name):
    algorithm, fields = CASES[name]
    expected, found = counted(algorithm, **fields)
    assert found == pytest.approx(expected, rel=0.05)


def test_formulae_by_hand():
    """A mean of 1e6 numbers of 4 bytes, of 16 devices on 2 hosts; one device."""
    mean = traffic.Exchange("all-reduce", "mean", 4_000_000)
    pods = traffic.Cluster(2, 8)
    assert mean.sent(pods) == 2 * 15 / 16 * 4e6
    assert mean.left(pods) == 4e6
    rows = traffic.Exchange("all-to-all", "rows", 1600)
    assert (rows.sent(pods), rows.left(pods)) == (1500, 6400)
    group = planned(fp.FedAvg(), "vmap")
    found = traffic.estimate(group, traffic.Cluster(1, 1, flops=1e6))
    assert found.sent == found.left == found.communication == 0 == len(found.exchanges)
    length = federation().train.index.shape[1]
    assert found.compute == pytest.approx(6 * 1204 * length * CLIENTS / 1e6)
    with pytest.raises(checks.InputError, match="that 5 devices divide, such as 35"):
        traffic.estimate(group, traffic.Cluster(5, 1))


RUNNER = typer.testing.CliRunner()
PLAN = ("--preset", "quadratic", "--seeds", "1", "--set", "algorithm=flame")


def test_the_plan_of_a_million_clients_on_hosts():
    """Printed at once, without compiling; memory falls with the devices."""
    more = ("--as-if-clients", "1000000", "--hosts")
    for hosts, rows in ((2, "MB"), (20, "MB")):
        done = RUNNER.invoke(plan.app, [*PLAN, *more, str(hosts), "--devices", "8"])
        assert done.exit_code == 0, done.output
        text = " ".join(done.output.split())
        assert f"hosts, devices of each {hosts}, 8" in text
        assert "clients N, cohort K 1,000,000, 1,000,000" in text and rows in text
    limited = [*PLAN, *more, "2", "--devices", "8", "--memory-limit", "1kB"]
    done = RUNNER.invoke(plan.app, limited)
    assert done.exit_code == 2 and "of memory per device, more than 1 kB" in done.output


@pytest.mark.parametrize("name", ["--network-gb", "--device-tflops"])
def test_what_describes_hosts_needs_them(name):
    done = RUNNER.invoke(plan.app, [*PLAN, name, "3"])
    assert done.exit_code == 2
    assert f"{name} needs --hosts" in " ".join(done.output.replace("│", " ").split())
