"""Trainings with other transforms are other trainings, in every table."""

import jax
import pytest

import fedjax_pfl as fp
from fedjax_pfl.figures import lines

CHAINS = {
    None: (),
    "TopK + QSGD": (fp.TopK(fraction=0.1), fp.QSGD(levels=7)),
}


@pytest.fixture(scope="module")
def result():
    spec = fp.FederationSpec("digits", num_clients=6, validation_fraction=0.2)
    options = {"num_rounds": 4, "eval_every": 2, "progress": False}
    return fp.Result.merge(
        fp.grid(
            jax.random.key(0, impl="threefry2x32"),
            fp.FederatedProcess(algorithm=fp.FedAvg(), transforms=chain),
            fp.LogisticRegression(),
            spec,
            {"seed": [0, 1]},
            **options,
        )
        for chain in CHAINS.values()
    )


def test_pipelines_have_a_column_and_rows_of_their_own(result):
    names = result.summary()["transforms"].fillna("")
    assert names.tolist() == ["", *filter(None, CHAINS)]
    sent = result.communication().groupby("transforms", dropna=False)["bytes_up"]
    assert sent.nunique().tolist() == [1, 1]  # of both seeds
    means = sent.mean()
    assert means["TopK + QSGD"] < means[means.index.isna()].item()


def test_without_noise_there_is_no_epsilon(result):
    assert result.privacy().empty and "epsilon" not in result.summary()


def test_what_is_sent_is_drawn_in_one_panel(result):
    shown = lines.over_megabytes(result)
    (panel,) = shown.panels
    assert len(panel.marks) == 2
    ends = sorted(mark.points["x"].iloc[-1] for mark in panel.marks)
    assert ends[0] < ends[1] and (panel.marks[0].points["x"] > 0).all()
