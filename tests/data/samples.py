"""Files and damaged bytes for tests of readers, and the messages of refusals."""

import gzip
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from fedjax_pfl.core import checks

PARTS = ("train", "validation", "test")
SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data"


def refusal(function, *args, match=None, parts=(), **kwargs):
    """Returns the one sentence with which a function refuses its arguments."""
    with pytest.raises(checks.InputError, match=match) as error:
        function(*args, **kwargs)
    sentence = str(error.value)
    assert sentence.endswith(".") and "\n" not in sentence
    assert [part for part in parts if part not in sentence] == []
    return sentence


def load(source):
    """Loads a user's own data."""
    return source.load(data_dir=None, seed=0, num_clients=None)


@jax.jit
def _gathered(part):
    """Returns the inputs `[N, M, ...]` of all clients, padded ones with them."""
    places = jnp.arange(part.index.shape[1])
    weight = jnp.ones(len(places))
    pool = part.pool()
    return jax.vmap(lambda rows: pool.with_rows(rows).gather(places, weight).x)(
        part.rows()
    )


def inputs(part):
    """Returns the inputs of every client, as `examples` has them, by one program."""
    padded = np.asarray(_gathered(part))
    return [own[:n] for own, n in zip(padded, part.num_examples.tolist(), strict=True)]


def rows(part, client):
    """Returns the rows of the pool that a client has in a part."""
    return np.asarray(part.index)[client, : int(part.num_examples[client])]


def write(path, content):
    """Writes bytes, text or an object of JSON, compressed if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes | str):
        content = json.dumps(content)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def leaf(**users):
    """Returns an object in LEAF's format from `(x, y)` by user."""
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }


def mutated(data, content):
    """Returns a copy with changed, missing or additional bytes, or cut."""
    content = bytearray(content)
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position : position + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3)
        )
    return bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
