"""One of several processes of a training; started by test_distributed.py."""

import os
import pathlib
import sys

PROCESSES, PROCESS, PORT, DEVICES, OUT = (
    int(sys.argv[1]),
    int(sys.argv[2]),
    sys.argv[3],
    sys.argv[4],
    sys.argv[5],
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
if PROCESSES > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{PORT}", PROCESSES, PROCESS, initialization_timeout=300
    )

import numpy as np  # noqa: E402

import fedjax_pfl as fp  # noqa: E402
from fedjax_pfl.core import client_rows  # noqa: E402
from fedjax_pfl.engine import groups, simulation  # noqa: E402
from fedjax_pfl.engine.options import Options  # noqa: E402
from fedjax_pfl.engine.resident import Resident  # noqa: E402
from fedjax_pfl.engine.streaming import row_store, training  # noqa: E402
from fedjax_pfl.round.parts import mailbox  # noqa: E402
from fedjax_pfl.testing import toy  # noqa: E402

local = fp.SGD(learning_rate=0.1, epochs=2, batch_size=4)
process = fp.FederatedProcess(
    algorithm=fp.Flame(lam=1.0, kappa=2.0, local=local),
    participation=fp.UniformCohort(size=6),
)
result = fp.simulate(
    jax.random.key(0),
    process,
    fp.LogisticRegression(),
    toy.make_federation(),
    6,
    eval_every=3,
    execution="shard",
    models_to=f"{OUT}.models",
    progress=False,
)
(group,) = result.groups
np.savez(OUT, **group.metrics, **group.per_round, selected=group.times_selected)


def bytes_here(tree):
    """Bytes of the parts of arrays that this process has."""
    leaves = jax.tree.leaves(tree)
    return sum(part.data.nbytes for leaf in leaves for part in leaf.addressable_shards)


federation = toy.make_federation()
model = fp.LogisticRegression().for_federation(federation)
everybody = fp.FederatedProcess(algorithm=process.algorithm)
group = groups.single(jax.random.key(0), everybody, model, federation)
(planned,) = simulation.check_groups([group], Options(num_rounds=1, execution="shard"))
trainer = Resident(planned)
trainer.begin()
rows = (trainer.states.clients, trainer.states.rows.get("messages"), trainer.fixed[1])
examples = (trainer.fixed[2].train.x, trainer.fixed[2].train.y)
for kind, tree in (("rows", rows), ("examples", examples)):
    everywhere = client_rows.num_bytes(tree)
    print(f"{kind}: {bytes_here(tree)} bytes here of {everywhere}")


# A streamed training, whole, and ended after a checkpoint and gone on with. The mean of
# all messages is computed anew, from all files, after the fourth round.
mailbox.RARELY = 4
written, write, run = set(), row_store.RowStore.write, training.Training.run


class EnoughError(Exception):
    """Ends a training."""


def noted(self, rows, values):
    """Writes rows, and notes into which file."""
    written.add(self._path.name)
    write(self, rows, values)


row_store.RowStore.write = noted


def streamed(folder, segments):
    """The history of a training that may run so many segments."""
    left = iter(range(segments))

    def bounded(self, start, count):
        if next(left, None) is None:
            raise EnoughError
        return run(self, start, count)

    training.Training.run = bounded
    (group,) = fp.simulate_streamed(
        jax.random.key(0),
        process,
        fp.LogisticRegression(),
        toy.make_federation(),
        6,
        eval_every=2,
        execution="shard",
        progress=False,
        checkpoints=fp.Checkpoints(folder, min_seconds=0),
    ).groups
    return group.metrics | group.per_round | {"selected": group.times_selected}


process = fp.FederatedProcess(
    algorithm=process.algorithm, participation=fp.UniformCohort(size=5)
)
folder = pathlib.Path(OUT).parent
whole = streamed(folder / f"whole-of-{PROCESSES}", 3)
try:
    streamed(folder / f"halves-of-{PROCESSES}", 2)
except EnoughError:
    print("interrupted")
again = streamed(folder / f"halves-of-{PROCESSES}", 1)
for name in whole:
    np.testing.assert_array_equal(again[name], whole[name], err_msg=name)
np.savez(f"{OUT}.streamed.npz", **whole)
print("files:", *sorted(written))
print("finished on", jax.device_count(), "devices of", jax.process_count(), "processes")
