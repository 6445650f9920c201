"""Memory and time of trainings: compiled programs, real rounds, refusals, the plan."""

import dataclasses
import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer.testing

import fedjax_pfl as fp
from experiments import plan, run
from fedjax_pfl import data
from fedjax_pfl.command import compilation_cache, cost_tables
from fedjax_pfl.core import checks
from fedjax_pfl.engine import cost, groups, simulation
from fedjax_pfl.engine.options import Options, parse_memory
from fedjax_pfl.engine.resident import Resident
from tests.lanes import wide

RUNNER = typer.testing.CliRunner()
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


def group_of(algorithm=None, federations=None, *, model=None, **fields):
    federations = federations or [federation_of()]
    process = fp.FederatedProcess(algorithm=algorithm or fp.FedAvg(), **fields)
    model = model or fp.LogisticRegression()
    count = len(federations)
    return groups.Group(
        points=[{}] * count,
        processes=[process] * count,
        model=model,
        federations=federations,
        described=[
            data.describe(each)
            for each in federations
            if not isinstance(each.malicious, jax.ShapeDtypeStruct)
        ],
        keys=[jax.random.key(0)] * count,
        config=groups.config_of(process, model, federations[0]),
    )


def settings_of(**options):
    options = {"eval_every": 5, "evaluate_on": ("test",), "execution": "vmap"} | options
    return Options(num_rounds=NUM_ROUNDS, **options)


def memory(group, **options):
    planned = groups.plan(group, settings_of(**options))
    return cost.memory(Resident(planned, are_shapes=True))


def bytes_of(tree):
    """Of distinct real arrays; a key is two words."""
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}.values()
    return sum(
        jax.random.key_data(x).nbytes
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        else x.nbytes
        for x in leaves
    )


def refusal(group, **options):
    """The sentence with which a group is refused before or after compilation."""
    settings = settings_of(**options)
    with pytest.raises(checks.InputError) as error:
        planned = groups.plan(group, settings)
        Resident.check(planned)
        cost.check(Resident(planned))
    text = str(error.value)
    assert re.fullmatch(r"Training needs about .* of memory \(.*\), but .*\.", text)
    return text


@pytest.fixture
def free(monkeypatch):
    """Says how much memory is free."""
    return lambda size: monkeypatch.setattr(
        cost, "available_bytes", lambda *, host=False: size
    )


@pytest.mark.parametrize(
    ("algorithm", "points", "execution"),
    [
        (fp.Flame(), 3, "shard=2"),
        wide(fp.FedACS(), 1, "chunk=3"),
        wide(fp.Flame(), 3, "vmap"),
        wide(fp.Flame(), 3, "chunk=3"),
        wide(fp.FedACS(), 1, "vmap"),
        wide(fp.FedACS(), 1, "shard=2"),
    ],
)
def test_arrays_are_those_of_a_training(algorithm, points, execution):
    settings = settings_of(execution=execution, points_per_chunk=2)
    group = group_of(algorithm, [federation_of()] * points)
    trainer = Resident(groups.plan(group, settings))
    needed = cost.memory(trainer)
    trainer.begin()
    parts = {
        "state": trainer.states,
        "server": (trainer.states.server, trainer.states.memory.get("mean")),
        "data": trainer.fixed,
    }
    for name, tree in parts.items():
        # On every device, what it has of an array.
        leaves = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}.values()
        shards = [
            shard.data
            for leaf in leaves
            for shard in getattr(leaf, "addressable_shards", [])
        ]
        on_host = [leaf for leaf in leaves if not hasattr(leaf, "sharding")]
        assert getattr(needed, name) == bytes_of(shards) + bytes_of(on_host)
    assert needed.points == points


def test_work_is_what_xla_says():
    """A program whose arrays are known: the product has to be somewhere."""

    @functools.partial(jax.jit, donate_argnums=1)
    def program(x, state):
        return (x @ x.T).max(axis=0), state + 1

    x = jax.ShapeDtypeStruct((1000, 10), jnp.float32)
    state = jax.ShapeDtypeStruct((500,), jnp.float32)
    found = cost._work_bytes(program.lower(x, state).compile())
    product, made = 4 * 1000 * 1000, 4 * 1000
    assert made <= found <= 1.1 * (product + made)


def test_every_program_is_compiled_once_and_then_run(compilations):
    group = group_of(fp.Ditto(lam=0.123), model=fp.MLP(widths=(11,)))
    settings = settings_of()
    trainer = Resident(groups.plan(group, settings))
    cost.check(trainer)
    record = simulation.Run(trainer).train()
    assert record.status == ("ok",)
    for name in ("jit(init)", "jit(segment)", "jit(evaluate)"):
        assert compilations.count(name) == 1


@pytest.mark.wide
def test_a_finished_training_is_not_compiled_again(compilations, tmp_path):
    def train():
        fp.simulate(
            *(jax.random.key(0), fp.FederatedProcess(algorithm=fp.FedAvg())),
            *(fp.MLP(widths=(13,)), federation_of(), 2),
            checkpoints=fp.Checkpoints(tmp_path / "kept"),
            progress=False,
        )

    train()
    assert "jit(segment)" in compilations
    jax.clear_caches()
    compilations.clear()
    train()
    assert "jit(segment)" not in compilations


@pytest.mark.wide  # points of a training share them above
def test_shared_arrays_count_once():
    first, second = federation_of(seed=0), federation_of(seed=1)
    pool = (first.train.x, first.train.y)
    alike = memory(group_of(federations=[first] * 2))
    different = memory(group_of(federations=[first, second]))
    assert different.data - alike.data >= bytes_of(pool)
    settings = settings_of(execution="shard=4")
    pool = Resident(groups.plan(group_of(federations=[first]), settings)).fixed[2]
    (image,) = {id(part.x) for part in (pool.train, pool.test)}
    assert image


@pytest.mark.wide
def test_fewer_at_once_need_less():
    group = group_of(fp.Local(), [federation_of(32, 640)])
    whole, half, one = (
        memory(group, execution=execution).round
        for execution in ("vmap", "chunk=16", "chunk=1")
    )
    assert one < half < whole
    cohort = group_of(participation=fp.UniformCohort(size=2))
    batch = group_of(fp.FedAvg(local=fp.SGD(batch_size=1)))
    assert max(memory(cohort).round, memory(batch).round) < memory(group_of()).round


def test_a_federation_too_large_is_refused_at_once(free, compilations):
    free(64 * GB)

    def large(leaf):
        shape = leaf.shape
        shape = (10**9, *shape[1:]) if shape[:1] == (10,) else shape
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    federation = jax.tree.map(large, federation_of(10))
    text = refusal(group_of(fp.Flame(), [federation]))
    assert "federation.num_clients" in text and "64 GB are free" in text
    assert "GB of memory (state: " in text
    assert "jit(segment)" not in compilations


def test_a_model_too_large_is_refused_at_once(free):
    free(64 * GB)
    text = refusal(group_of(model=fp.MLP(widths=(10**6, 10**5))))
    assert "a smaller model" in text
    assert "federation.num_clients" not in text  # which would not help


@pytest.mark.wide
def test_too_many_points_are_refused(free):
    group = group_of(fp.Flame(), [federation_of()] * 32)
    free(memory(group, points_per_chunk=4).state)
    text = refusal(group, points_per_chunk=4)
    assert "of 32 grid points" in text
    assert "sweep fewer points at once" in text


def test_a_history_too_large_is_refused(free):
    group = group_of(
        federations=[federation_of(160, 1600)], participation=fp.UniformCohort(size=1)
    )
    options = {"execution": "chunk=1", "eval_every": 1}
    needed = memory(group, **options)
    free(needed.history)
    text = refusal(group, **options)
    assert "(history: " in text
    assert "eval_every" in text


@pytest.mark.parametrize(
    ("points", "options"),
    [(1, {"execution": "vmap"}), wide(4, {"points_per_chunk": 4})],
)
def test_the_setting_named_makes_it_fit(free, points, options):
    group = group_of(federations=[federation_of(64, 640)] * points)
    needed = memory(group, **options)
    room = needed.state + needed.history + needed.round * 4 // 5
    free(room)
    settings = settings_of(**options)
    with pytest.raises(checks.InputError) as error:
        cost.check(Resident(groups.plan(group, settings)))
    found = re.search(r": use (\w+)='?([\w=]+)'?\.$", str(error.value))
    assert found, error.value
    value = int(found[2]) if found[2].isdecimal() else found[2]
    changed = memory(group, **options | {found[1]: value})
    assert changed.device - changed.data + changed.history <= room


def test_what_fits_passes(free):
    group, settings = group_of(), settings_of()
    trainer = Resident(groups.plan(group, settings))
    needed = cost.memory(trainer)
    for size in (needed.total, None):
        free(size)
        assert cost.check(trainer).device == needed.device


def test_a_limit_of_the_users_own():
    group = group_of()
    needed = memory(group)
    size = needed.device + needed.history
    assert "the limit is" in refusal(group, memory_limit=size - 1)
    settings = settings_of(memory_limit=size)
    planned = groups.plan(group, settings)
    Resident.check(planned)
    cost.check(Resident(planned))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("512mib", 2**29),
        ("7k", 7000),
        (123, 123),
        ("none", "none"),
        ("free", "free"),
    ],
)
def test_sizes_of_memory(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1e9", "8XB", "nan", True])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(checks.InputError, match="Expected memory_limit to be a size"):
        parse_memory(text)


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
    assert cost._cgroup_bytes(tmp_path, tmp_path / "groups") == expected


def test_available_memory(monkeypatch):
    size = cost.available_bytes()
    assert size == pytest.approx(cost.available_bytes(host=True), rel=0.5)
    assert 0 < size < 10**15

    class Device:
        stats = {"bytes_limit": 100, "bytes_in_use": 30}

        def memory_stats(self):
            return self.stats

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert cost.available_bytes() == 70
    monkeypatch.setattr(Device, "stats", None)
    assert cost.available_bytes() is None


def test_the_pace_is_that_of_real_rounds():
    trainer = Resident(groups.plan(group_of(), settings_of()))
    rounds = []
    advance = trainer.advance

    def counted(active, done, count):
        rounds.append((done, done + count))
        return advance(active, done, count)

    trainer.advance = counted
    pace = cost.pace(trainer)
    assert rounds[0] == (0, 1)
    assert [start for start, _ in rounds[1:]] == [end for _, end in rounds[:-1]]
    assert all(1 <= end - start <= 5 for start, end in rounds)
    assert rounds[-1][1] <= NUM_ROUNDS
    assert min(pace.compilation, pace.start, pace.round, pace.evaluation) > 0
    plain = dataclasses.replace(
        pace, compilation=1.0, start=2.0, round=3.0, evaluation=4.0
    )
    assert plain.total(10, 5) == 1 + 2 + 10 * 3 + 5 * 4


def test_largest_of_a_chunk():
    sizes = np.asarray([1, 5, 2, 8])
    assert cost_tables.largest_of_chunk(sizes, 4, 4, 4) == 8
    assert cost_tables.largest_of_chunk(sizes, 4, 4, 2) == (5 + 8) / 2
    assert cost_tables.largest_of_chunk(sizes, 4, 4, 2, by_size=True) == (8 + 2) / 2
    assert cost_tables.largest_of_chunk(sizes, 4, 4, 1) == 4
    cohorts = cost_tables.largest_of_chunk(sizes, 2, 4, 2)  # 8 is in half of the pairs
    assert 5 <= cohorts <= 8
    assert 1 <= cost_tables.largest_of_chunk(sizes, 10**9, 10**9, 16) <= 8


def test_enlarged_federations_are_those_of_more_clients():
    federation = federation_of(8, 160)
    found = cost_tables.enlarged(federation, 8_000_000)
    assert found.num_clients == 8_000_000
    assert found.train.x.shape == (160_000_000, 200)
    assert found.train.index.shape == (8_000_000, *federation.train.index.shape[1:])
    assert found.train.x is found.test.x  # a pool is counted once
    same = cost_tables.enlarged(federation, 8)
    shapes = jax.tree.map(lambda a, b: a.shape == b.shape, same, federation)
    assert all(jax.tree.leaves(shapes))


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A command that trains nothing and keeps nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "_SECONDS", 1e-3)
    monkeypatch.setattr(compilation_cache, "keep", lambda: None)
    monkeypatch.setattr(
        simulation, "run_groups", lambda *a, **k: pytest.fail("trained")
    )


FEW = ["--preset", "quadratic", "--algorithm", "fedavg", "--seeds", "1"]


def planned(*arguments, fails=False):
    """The finished command."""
    done = RUNNER.invoke(plan.app, arguments)
    assert done.exit_code == (2 if fails else 0), done.output
    return done


def test_the_command_prints_tables_and_writes_nothing(quick):
    both = ("--preset", "quadratic", "--set", "algorithm=flame,fedavg")
    text = planned(*both, "--points-per-chunk", "1").stdout
    assert text.count("memory: at most") == text.count("time of a round") == 2
    assert "This fits into the free memory." in text
    assert list(pathlib.Path().iterdir()) == []


@pytest.mark.wide
def test_points_beyond_a_chunk_are_not_run(quick):
    sweep = ("--set", "algorithm.local.learning_rate=" + ",".join("123456789"))
    text = planned(*FEW, *sweep, "--points-per-chunk", "1").stdout
    assert re.search(r"measured on +[0-9]+ of 9 grid points", text)


def test_more_clients_are_planned_from_those_that_there_are(quick):
    text = planned(*FEW, "--as-if-clients", "5000").stdout
    assert "5,000, 5,000" in text and re.search(r"measured on .* 4 clients", text)


@pytest.mark.wide
def test_one_client_at_a_time_wastes_nothing(quick):
    """Whatever cohorts are drawn to find out."""
    alone = ("--algorithm", "fedavg", "--execution", "chunk=1", "--seeds", "1")
    few = ("--set", "participation=uniform", "--set", "participation.size=3")
    lines = planned(*alone, *few).stdout.splitlines()
    (line,) = (text for text in lines if "padding" in text)
    assert line.split("padding")[1].strip() == "0%, one client at a time"


def test_ten_million_clients_are_refused_without_making_them(quick, free):
    free(64 * 10**9)
    many = ("--as-if-clients", "10000000", "--set", "algorithm=flame", "--seeds", "1")
    cohort = ("--set", "participation=uniform", "--set", "participation.size=10")
    done = planned(*many, *cohort, fails=True)
    assert "10,000,000, 10" in done.stdout and "but 64 GB are free" in done.stderr


def test_a_limit_on_the_command_line(quick):
    done = planned(*FEW, "--memory-limit", "1kB", fails=True)
    assert "the limit is 1 kB" in done.stderr
    assert "was not checked" in planned(*FEW, "--memory-limit", "none").stdout


_RATE = "algorithm.local.learning_rate"


@pytest.mark.wide
def test_the_plan_says_what_going_back_would_keep():
    """At least every client's own model, in each of five rounds."""
    options = Options(num_rounds=5)
    learned = {"clients": "algorithm.lam", "layers": "algorithm.lam"}
    found = cost_tables._going_back(group_of(fp.Ditto()), options, learned)
    assert [name.removeprefix("memory: going back for ") for name, _ in found] == [
        *learned
    ]
    rows = 5 * 8 * (200 * 4 + 4) * np.dtype(float).itemsize
    for _, text in found:
        parts = re.match(r"([0-9.]+) ([kMG]?B) \(states of 5 rounds", text)
        number, unit = parts.groups()
        size = float(number) * {"kB": 1e3, "MB": 1e6}[unit]
        assert rows <= size <= 5 * rows
    assert not cost_tables._going_back(group_of(), options, learned)


@pytest.mark.parametrize(
    ("app", "arguments", "sentence"),
    [
        (plan.app, [*FEW, "--learn-per-client", "algorithm.lam"], "algorithm 'lam'"),
        (plan.app, [*FEW, "--learn-per-client", _RATE], "ends by a tolerance"),
        (plan.app, [*FEW, "--learn-per-layer", "algorithm.mu"], "algorithm 'mu'"),
        (run.app, ["--learn-per-client", "algorithm.lam"], "No such option"),
        (plan.app, ["--resume", "r"], "No such option"),
        (run.app, ["--as-if-clients", "9"], "No such option"),
        (plan.app, ["--as-if-clients", "100000000"], "2995000000 examples, more than"),
        (plan.app, ["--set", "federation.test_fraction=0"], "empty test split"),
        (plan.app, ["--points-per-chunk", "0"], "--points-per-chunk"),
        (plan.app, ["--memory-limit", "much"], "Expected memory_limit to be a size"),
    ],
)
def test_wrong_options(quick, app, arguments, sentence):
    done = RUNNER.invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert sentence in done.stderr
