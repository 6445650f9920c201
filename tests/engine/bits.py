"""Whether trainings end with the same bits: `python -m tests.engine.bits NAME...`.

A name is that of an option, or of several with a plus between them.

A process of its own, since tests compile otherwise than users do, and whether two
programs round alike depends on that.
"""

import json
import os
import sys

import jax
import numpy as np

import fedjax_pfl as fp
from fedjax_pfl.engine.options import Options
from fedjax_pfl.testing import compiled_rounds, toy
from tests import trainings

OPTIONS = {
    "again": {},
    "eval_every": {"eval_every": 1},
    "evaluate_on": {"evaluate_on": ("train", "everybody")},
    "diagnostics": {"diagnostics": True},
    "eval_clients": {"eval_clients": 2},
    "participants": {"eval_clients": "participants"},
    "stop_when": {"stop_when": fp.StopWhen(patience=100, data="test")},
}


def final(seed=2, **options):
    """Training state after four rounds with a cohort, an attack and stragglers."""
    federation = toy.make_federation()
    process = fp.FederatedProcess(
        algorithm=fp.Flame(local=fp.SGD(batch_size=4)),
        participation=fp.UniformCohort(size=4),
        work=fp.Stragglers(fraction=0.5),
        attack=fp.attacks.Gaussian(),
    )
    key = jax.random.key(seed, impl="threefry2x32")
    group = compiled_rounds.group(key, process, fp.LogisticRegression(), federation)
    plain = {"eval_every": 2, "execution": "vmap", "evaluate_on": ("test",)}
    options = plain | options
    _, run = trainings.train(group, Options(num_rounds=4, **options))
    return [np.asarray(leaf) for leaf in toy.leaves(run.states)]


def same(one, other):
    """Whether two lists of arrays hold the same bits."""
    return all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def main():
    """Prints for every name whether the state is that without the option."""
    jax.config.update("jax_enable_x64", True)
    expected = final()
    found = {}
    for name in sys.argv[1:]:
        options = {k: v for n in name.split("+") for k, v in OPTIONS[n].items()}
        found[name] = same(expected, final(**options))
    print(json.dumps(found | {"another seed": same(expected, final(seed=3))}))


if __name__ == "__main__":
    assert os.environ["JAX_PLATFORMS"] == "cpu"
    main()
