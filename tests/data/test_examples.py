"""One client's examples, whole, as models see them."""

import numpy as np

import fedjax_pfl as fp
from tests.data import samples


def test_examples_of_a_client_are_scaled_and_in_order():
    spec = fp.FederationSpec("digits", "dirichlet_labels", num_clients=6)
    federation = spec.build()
    batch = federation.test.examples(2)
    rows = samples.rows(federation.test, 2)
    pool = np.asarray(federation.test.x)[rows].astype(float)
    np.testing.assert_allclose(batch.x, pool / 16, rtol=1e-6)
    assert batch.y.tolist() == np.asarray(federation.test.y)[rows].tolist()
    assert batch.weight.tolist() == [1] * len(rows)
    for client in (-1, 6):
        samples.refusal(federation.test.examples, client, match="from 0 to 5, got")
