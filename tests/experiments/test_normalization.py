"""The comparison of FedBN, and its page."""

import numpy as np
import pandas as pd

from experiments import normalization


def test_the_page_has_the_table_of_the_kept_scores():
    scores = pd.read_csv(normalization.SCORES)
    text = normalization.PAGE.read_text("utf-8")
    assert normalization.page(text, scores) == text
    assert set(scores["method"]) == set(normalization.METHODS)


def test_clients_see_the_same_digits_in_a_light_of_their_own():
    federation = normalization.lit(0)
    assert federation.num_clients == normalization.CLIENTS
    rng = np.random.default_rng(0)
    owner = rng.permutation(1797) % normalization.CLIENTS
    contrast, brightness = rng.uniform(0.3, 1.0, 20), rng.uniform(-0.5, 0.5, 20)
    for client in (0, 1):
        batches = (federation.train, federation.validation, federation.test)
        x = np.concatenate([part.examples(client).x for part in batches])
        assert len(x) == (owner == client).sum()
        plain = (x - brightness[client]) / contrast[client]
        plain = 1 - plain if client % 2 else plain
        # What is left are digits from 0 to 16, up to the rounding of float32.
        np.testing.assert_allclose(16 * plain, np.round(16 * plain), atol=1e-4)
        assert plain.min() > -1e-5 and plain.max() < 1 + 1e-5


def test_differences_are_paired_by_seed():
    scores = pd.DataFrame(
        [
            (name, seed, 0.5 + 0.1 * seed + 0.01 * number, 0.25)
            for number, name in enumerate(normalization.METHODS)
            for seed in range(3)
        ],
        columns=["method", "seed", "accuracy", "worst"],
    )
    lines = normalization.table(scores).splitlines()
    assert len(lines) == 2 + len(normalization.METHODS)
    # Seven methods, a hundredth apart; FedAvg is the fifth.
    assert lines[-1] == "| FedBN | 66.0 ± 10.0 | 25.0 | +2.0 [+2.0, +2.0] |"
