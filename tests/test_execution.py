"""How the map over clients is run where nobody says."""

import jax
import pytest

import fedjax_pfl as fp
from fedjax_pfl import execution
from tests.algorithms import toy


@pytest.mark.parametrize(
    ("width", "size", "expected"),
    [
        (4, 8, "vmap"),  # small steps: one device
        (10_000, 8, "shard"),  # 8 devices, one client each
        (10_000, 4, "shard=4"),
        (10_000, 1, "vmap"),
    ],
)
def test_choice_of_execution(width, size, expected):
    federation = toy.make_federation()
    model = fp.MLP(widths=(width,)).for_federation(federation)
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(), participation=fp.UniformCohort(size=size)
    )
    assert str(execution.choose(process, model, federation)) == expected


@pytest.mark.parametrize(
    ("num_clients", "width", "expected"),
    [(8, 4, "vmap"), (8, 1000, "chunk=1"), (500, 4, "chunk"), (500, 1000, "chunk=1")],
)
def test_choice_of_chunks_on_one_device(monkeypatch, num_clients, width, expected):
    """Large steps one by one; many small ones in chunks that fit the cache."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    spec = fp.FederationSpec("digits", "iid", num_clients=num_clients)
    federation = spec.build()
    model = fp.MLP(widths=(width,)).for_federation(federation)
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    found = execution.choose(process, model, federation)
    assert str(found) == expected or found.mode == expected and found.chunk_size > 8
