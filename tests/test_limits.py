"""The memory of trainings, estimated before anything is compiled."""

import contextlib
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedjax_pfl as fp
from fedjax_pfl import (
    checks,
    clients,
    compiled,
    limits,
    liveness,
    schedule,
    stacking,
    struct,
)

GB = 10**9
NUM_ROUNDS = 20


@functools.cache
def federation_of(num_clients=8, num_examples=160, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_examples, 200)).astype(np.float32)
    y = np.arange(num_examples) % 4
    return fp.Federation.from_arrays(
        x, y, num_clients=num_clients, partition=fp.IID(), seed=seed
    )


def group(
    algorithm=None,
    federations=None,
    *,
    model=None,
    execution="vmap",
    points_per_chunk=1,
    evaluate_on=("test",),
    eval_every=5,
    eval_clients="all",
    **fields,
):
    """What the driver would check: `(plan, processes, federations, num_rounds)`."""
    federations = federations or [federation_of()]
    algorithm = fp.FedAvg() if algorithm is None else algorithm
    process = struct.as_arrays(fp.FederatedProcess(algorithm=algorithm, **fields))
    model = fp.LogisticRegression() if model is None else model
    planned = schedule.Schedule.parse(evaluate_on, eval_every, eval_clients, NUM_ROUNDS)
    plan = compiled.Plan(
        model=model.for_federation(federations[0]),
        execution=clients.Execution.parse(execution),
        schedule=planned,
        diagnostics=False,
        points_per_chunk=points_per_chunk,
        stops=False,
    )
    processes = stacking.stack([process] * len(federations))
    return plan, processes, federations, NUM_ROUNDS


def estimate(*args, **options):
    return limits.estimate(*group(*args, **options))


def bytes_of(tree):
    """Of real arrays; a key is two words."""
    leaves = jax.tree.leaves(tree)
    is_key = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    return sum(
        jax.random.key_data(x).nbytes if key else x.nbytes
        for x, key in zip(leaves, is_key, strict=True)
    )


@contextlib.contextmanager
def nothing_compiles():
    events = []

    def listen(event, duration_secs, **_):
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert [event for event in events if "backend_compile" in event] == []


def refusal(monkeypatch, free, *args, **options):
    """The sentence with which a group is refused."""
    monkeypatch.setattr(limits, "available_bytes", lambda *, host=False: free)
    given = group(*args, **options)
    with nothing_compiles(), pytest.raises(checks.InputError) as error:
        limits.check(*given)
    text = str(error.value)
    assert re.fullmatch(r"Training needs about .* of memory \(.*\), but .*\.", text)
    return text


UNIT = 100 * 100 * 8  # one matrix


@pytest.mark.parametrize(
    ("program", "overwritten", "expected"),
    [
        (lambda x: x @ x, (), 1),
        (lambda x: x @ x, (0,), 2),
        (lambda x: ((x @ x) @ x) @ x, (), 2),  # at most two products at once
        (lambda x: (x @ x) @ (x.T @ x), (), 3),  # a transpose is a copy
        (lambda x: (jnp.sin(x) * 2 + 1).sum(), (), 0),  # fused
        (lambda x: (jnp.sin(x) @ x).sum(), (), 2),  # a product reads arrays
        (lambda x: x + 1, (0,), 1),  # in place
        (lambda x: (x @ x, x[0])[1], (), 0),  # nobody reads the product
        (lambda x: x.reshape(-1)[None].reshape(x.shape) @ x, (), 1),
        (lambda x: (x, x), (), 2),  # an output is a buffer of its own
        (lambda x: jax.jit(lambda y: y @ y)(x) @ x, (), 2),
        (lambda x: lax.fori_loop(0, 9, lambda _, y: y @ y, x), (), 2),
        (lambda x: lax.fori_loop(0, 9, lambda _, y: y @ y, x), (0,), 2),
        (lambda x: lax.scan(lambda c, _: (c @ c, c), x, None, 9)[1], (), 9 + 2),
        (lambda x: lax.map(lambda y: (x @ x)[0] * y, x), (), 1 + 1),
        (lambda x: lax.cond(x[0, 0] > 0, lambda y: (y @ y) @ y, jnp.sin, x), (), 2),
    ],
)
def test_peak_of_programs(program, overwritten, expected):
    matrix = jax.ShapeDtypeStruct((100, 100), jnp.float64)
    traced = jax.make_jaxpr(program)(matrix).jaxpr
    found = liveness.peak_bytes(traced, overwritten)
    assert expected * UNIT <= found <= (expected + 0.1) * UNIT


def test_residuals_of_a_gradient_live_until_it_is_taken():
    def loss(layers, x):
        for layer in layers:
            x = jnp.tanh(x @ layer)
        return (x**2).sum()

    def peak(depth):
        layers = [jax.ShapeDtypeStruct((10, 10), jnp.float64)] * depth
        x = jax.ShapeDtypeStruct((10_000, 10), jnp.float64)
        return liveness.peak_bytes(jax.make_jaxpr(jax.grad(loss))(layers, x).jaxpr)

    growth = (peak(20) - peak(10)) / (10 * 10_000 * 10 * 8)
    assert 1 <= growth <= 3  # activations per layer


@pytest.mark.parametrize(("algorithm", "points"), [(fp.Flame(), 3), (fp.FedACS(), 1)])
def test_state_is_that_of_an_initialized_training(algorithm, points):
    plan, processes, federations, rounds = group(
        algorithm, [federation_of()] * points, points_per_chunk=2
    )
    found = limits.estimate(plan, processes, federations, rounds)
    rows, pool = stacking.federation_rows(federations)
    keys = jnp.stack([jax.random.key(0)] * points)
    states = compiled.init(plan, processes, keys, rows, pool)
    assert found.state == bytes_of(states)
    assert found.server == bytes_of((states.server, states.aggregate))
    assert found.data == bytes_of(rows) + found.held
    assert found.points == points


def test_state_of_clients_doubles_with_their_number():
    few, many = (
        estimate(fp.Flame(), [federation_of(n, num_examples=160)]) for n in (8, 16)
    )
    assert many.server == few.server
    growth = many.state - few.state
    assert few.state - growth == pytest.approx(few.server, abs=50)  # counters, a key


def test_shared_arrays_count_once():
    first, second = federation_of(seed=0), federation_of(seed=1)
    pool = (first.train.x, first.train.y)
    alike, different = (
        estimate(federations=[first] * 2),
        estimate(federations=[first, second]),
    )
    assert alike.held < different.held
    assert different.part("data") - alike.part("data") >= 2 * bytes_of(pool)
    assert alike.part("data") < bytes_of(first)


def test_fewer_clients_at_once_need_less():
    federations = [federation_of(32, 640)]
    whole, half, one, loop = (
        estimate(fp.Local(), federations, execution=execution).round
        for execution in ("vmap", "chunk=16", "chunk=1", "loop")
    )
    assert one < half < whole
    assert loop == one


def test_smaller_cohorts_and_batches_need_less():
    found = estimate()
    cohort = estimate(participation=fp.UniformCohort(size=2))
    batch = estimate(fp.FedAvg(local=fp.SGD(batch_size=1)))
    assert max(cohort.round, batch.round) < found.round


def test_fewer_points_at_once_need_less_for_evaluation():
    federations = [federation_of(16, 640)] * 8
    few, many = (
        estimate(None, federations, points_per_chunk=k).evaluation for k in (1, 8)
    )
    assert 4 * few < many


def test_history_grows_with_evaluations_clients_and_data():
    # Loss and accuracy, who was evaluated, how often selected; and once more stacked.
    assert estimate().history == 2 * 5 * 8 * (2 * 8 + 1 + 8)
    more = estimate(
        federations=[federation_of(10)], evaluate_on=("test", "train"), eval_every=10
    )
    assert more.history == 2 * 3 * 10 * (2 * 2 * 8 + 2 + 8)


def test_devices_of_a_cpu_share_its_memory():
    single, eight = (
        estimate(fp.Flame(), execution=execution) for execution in ("vmap", "shard=8")
    )
    assert eight.state == 8 * single.state


def test_a_federation_too_large_is_refused_at_once(monkeypatch):
    small = federation_of(10)
    large = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (10**9, *leaf.shape[1:]) if leaf.shape[:1] == (10,) else leaf.shape,
            leaf.dtype,
        ),
        small,
    )
    text = refusal(monkeypatch, 64 * GB, fp.Flame(), [large])
    assert "federation.num_clients" in text
    assert "64 GB are free" in text
    assert "GB of memory (state: " in text


def test_a_model_too_large_is_refused_at_once(monkeypatch):
    model = fp.MLP(widths=(10**6, 10**5))
    text = refusal(monkeypatch, 64 * GB, fp.FedAvg(), model=model)
    assert "a smaller model" in text
    assert "federation.num_clients" not in text  # which would not help


def test_too_many_points_are_refused(monkeypatch):
    federations = [federation_of()] * 32
    needed = estimate(fp.Flame(), federations, points_per_chunk=4)
    text = refusal(
        monkeypatch, needed.state, fp.Flame(), federations, points_per_chunk=4
    )
    assert "of 32 grid points" in text
    assert "sweep fewer points at once" in text


def test_a_history_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "COMPILER", 0)
    monkeypatch.setattr(limits, "EQUATION", 0)
    options = {"federations": [federation_of(160, 1600)], "execution": "chunk=1"}
    options |= {"participation": fp.UniformCohort(size=1), "eval_every": 1}
    text = refusal(monkeypatch, 100_000, **options)
    assert "(history: " in text
    assert "eval_every" in text


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"execution": "vmap"}, r"execution='chunk=(\d+)'"),
        ({"points": 4, "points_per_chunk": 4}, r"points_per_chunk=(\d+)"),
    ],
)
def test_the_setting_named_makes_it_fit(monkeypatch, options, setting):
    monkeypatch.setattr(limits, "COMPILER", 0)
    monkeypatch.setattr(limits, "EQUATION", 0)
    options = dict(options)
    federations = [federation_of(64, 640)] * options.pop("points", 1)
    given = {"federations": federations, **options}
    needed = estimate(**given)
    free = (needed.device + needed.host) // 2
    text = refusal(monkeypatch, free, **given)
    found = re.search(setting, text)
    assert found, text
    if "execution" in options:
        given["execution"] = f"chunk={found[1]}"
    else:
        given["points_per_chunk"] = int(found[1])
    assert limits.check(*group(**given)).device < needed.device


def test_what_fits_passes(monkeypatch):
    given = group()
    needed = limits.estimate(*given)
    free = needed.device + needed.host
    monkeypatch.setattr(limits, "available_bytes", lambda *, host=False: free)
    assert limits.check(*given) == needed
    monkeypatch.setattr(limits, "available_bytes", lambda *, host=False: None)
    assert limits.check(*given) == needed


def test_traces_are_those_of_the_training():
    plan, processes, federations, rounds = group(fp.Flame())
    traced = []
    rows, pool = stacking.federation_rows(federations)

    @dataclasses.dataclass(frozen=True)
    class Counting(type(plan.model)):
        def apply(self, *args, **kwargs):
            traced.append(None)
            return super().apply(*args, **kwargs)

    fields = {
        f.name: getattr(plan.model, f.name) for f in dataclasses.fields(plan.model)
    }
    plan = dataclasses.replace(plan, model=Counting(**fields))
    limits.estimate(plan, processes, federations, rounds)
    assert traced
    before = len(traced)
    keys = jnp.stack([jax.random.key(0)])
    states = compiled.init(plan, processes, keys, rows, pool)
    now = (processes, states, rows, pool)
    zero = jnp.zeros((), jnp.int32)
    compiled.segment.trace(plan, *now, jnp.ones(1, bool), zero, zero)
    compiled.evaluate.trace(plan, plan.schedule.data, *now)
    assert len(traced) == before


@pytest.mark.parametrize(
    ("group_line", "files", "expected"),
    [
        ("0::/a/b", {"a/memory.max": "1000", "a/memory.current": "300"}, 700 + 50),
        ("0::/a/b", {"a/memory.max": "max", "a/memory.current": "300"}, None),
        ("0::/", {"memory.max": "100", "memory.current": "300"}, 0),
        ("3:cpu:/a", {"memory.max": "1000", "memory.current": "300"}, None),
        (
            "5:cpu,memory:/a",
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "300",
            },
            700 + 50,
        ),
    ],
)
def test_control_groups(tmp_path, group_line, files, expected):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        stat = "anon 7\ninactive_file 50\ntotal_inactive_file 50\n"
        (path.parent / "memory.stat").write_text(stat)
    (tmp_path / "groups").write_text(group_line + "\n")
    assert limits._cgroup_bytes(tmp_path, tmp_path / "groups") == expected


def test_available_memory(monkeypatch):
    free = limits.available_bytes()
    assert free == pytest.approx(limits.available_bytes(host=True), rel=0.5)
    assert 0 < free < 10**15

    class Device:
        stats = {"bytes_limit": 100, "bytes_in_use": 30}

        def memory_stats(self):
            return self.stats

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert limits.available_bytes() == 70
    monkeypatch.setattr(Device, "stats", None)
    assert limits.available_bytes() is None
