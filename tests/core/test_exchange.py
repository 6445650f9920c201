"""The view of one client: what it weighs, and what it may do without a budget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.testing import toy


def view():
    data = toy.make_federation().train
    rows = jax.tree.map(lambda leaf: leaf[2], data.rows())
    one = data.pool().with_rows(rows)
    return fp.ClientView(key=jax.random.key(0), round=jnp.int32(4), data=one)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_upload_weighs_by_examples_in_the_dtype_of_its_message(dtype):
    message = {"w": jnp.zeros(3, dtype), "b": jnp.zeros((), dtype)}
    upload = view().upload(message, aux=1.5)
    assert upload.message is message and upload.aux == 1.5
    assert upload.weight.dtype == dtype
    assert float(upload.weight) == toy.COUNTS[2]


def test_an_upload_of_nothing_has_a_weight_too():
    upload = view().upload(None)
    assert upload.message is None and upload.aux is None
    assert upload.weight.dtype == jnp.zeros(()).dtype
    assert float(upload.weight) == toy.COUNTS[2]


def test_a_view_without_a_budget_has_no_caps():
    solver = fp.SGD(learning_rate=0.1, epochs=3, batch_size=4)
    model = fp.LogisticRegression().for_federation(toy.make_federation())
    params, loss = model.init(jax.random.key(1)), fp.local.DataLoss(model)
    _, _, info = solver.solve(view(), loss, params, None)
    assert int(info.num_steps) == 3 * np.ceil(toy.COUNTS[2] / 4)
    assert not view().work.straggler and view().carry is None
