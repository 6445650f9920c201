"""FLAME's presets have the settings that its specification states."""

import pytest

import fedjax_pfl as fp
from experiments.presets.flame import EVEN, PROFILES, ROWS, federation
from fedjax_pfl.command import presets
from fedjax_pfl.core import struct


def grids(name):
    return presets.get(name).grids


def of(kind, name):
    """Processes of one algorithm in a preset."""
    found = (grid.process for grid in grids(name))
    return [process for process in found if type(process.algorithm) is kind]


def test_the_rows_are_those_of_the_table():
    assert len(ROWS) == 37 == len(set(ROWS))
    for row in ROWS:
        for profile in PROFILES:
            experiment = presets.get(f"flame_{profile}_{row}")
            assert experiment.seeds == (1, 10, 100, 1000, 10000)
            assert (experiment.num_rounds, experiment.eval_every) == (100, 10)
            for grid in experiment.grids:
                assert grid.spec.num_clients == 10
                assert grid.process.participation == fp.AllClients()


def test_the_paper_compares_with_equally_many_updates():
    sgd = fp.SGD(learning_rate=0.01, epochs=1, batch_size=100, remainder="full")
    (flame,) = of(fp.Flame, "flame_paper_mnist_dir")
    assert flame.algorithm == fp.Flame(lam=1.0, kappa=1.0, local=sgd)
    (pfedme,) = of(fp.PFedMe, "flame_paper_mnist_dir")
    assert (pfedme.algorithm.lam, pfedme.algorithm.inner) == (1.0, sgd)
    assert pfedme.algorithm.learning_rate in (0.01, 0.05, 0.1, 0.2, 0.5)
    (ditto,) = of(fp.Ditto, "flame_paper_mnist_dir")
    assert (ditto.algorithm.personal, ditto.algorithm.local.num_steps) == (sgd, 1)
    assert not ditto.algorithm.unsynced
    assert isinstance(ditto.aggregator, fp.aggregators.Mean)
    assert isinstance(pfedme.aggregator, fp.aggregators.Mean)


def test_the_fair_profile_adds_what_the_paper_leaves_out():
    rates = [p.algorithm.learning_rate for p in of(fp.PFedMe, "flame_fair_mnist_dir")]
    assert 1.0 in rates and len(rates) == 2  # 1 / lam
    solvers = [p.algorithm.local for p in of(fp.Ditto, "flame_fair_mnist_dir")]
    assert [(s.epochs, s.num_steps) for s in solvers] == [(1, 1), (1, None)]


def test_the_official_profile_is_the_release():
    name = "flame_official_mnist_hybrid"
    (flame,) = of(fp.Flame, name)
    assert flame.algorithm.center == "received"
    assert flame.algorithm.dual_update == "epoch"
    solver = flame.algorithm.local
    assert (solver.momentum, solver.weight_decay) == (0.5, 0.01)
    for process in of(fp.PFedMe, name):
        assert process.algorithm.inner == solver
    (ditto,) = of(fp.Ditto, name)
    assert ditto.algorithm.unsynced and ditto.algorithm.personal == solver
    spec = grids(name)[0].spec
    assert (spec.test_fraction, spec.validation_fraction) == (0.2, 0.0)
    for scheme in ("hybrid", "dir", "quantity"):
        partition = grids(f"flame_official_mnist_{scheme}")[0].spec.partition
        assert partition.name.startswith("leaky_")
        clean = grids(f"flame_fair_mnist_{scheme}")[0].spec.partition
        assert f"leaky_{clean.name}" == partition.name
    assert grids("flame_official_mmnist_quality")[0].spec.partition.in_file_order


def test_rows_say_what_becomes_of_a_short_last_batch():
    """The released code's full step, or batches of nearly one size."""
    for row in ROWS:
        for profile in PROFILES:
            for grid in grids(f"flame_{profile}_{row}"):
                fields = struct.plain_fields(grid.process.algorithm)
                solvers = {v for n, v in fields.items() if n.endswith("remainder")}
                even = row in EVEN and profile != "official"
                assert solvers == {"even" if even else "full"}


def test_switches_change_one_thing_each():
    """Toward the released code, from the paper's setting."""
    first, *others = grids("flame_switches_mnist_dir")
    plain = {type(g.process.algorithm): g for g in (first, *others[:2])}
    assert list(plain) == [fp.Flame, fp.PFedMe, fp.Ditto]
    assert plain[fp.PFedMe].axes == {"algorithm.learning_rate": (0.1, 0.2, 0.5)}
    for grid in others[2:]:
        reference = plain[type(grid.process.algorithm)]
        before, after = (struct.plain_fields(g.root) for g in (reference, grid))
        changed = {n.rpartition(".")[2] for n in after if after[n] != before[n]}
        assert changed in (
            {"momentum"},
            {"validation_fraction"},
            {"unsynced", "num_steps"},
        )


@pytest.mark.parametrize("row", ROWS)
def test_rows_have_their_data_scheme_and_model(row):
    spec, model = federation(row, "fair")
    name, _, scheme = row.partition("_")
    models = {
        "mmnist": fp.models.CNN1(),
        "cifar10": fp.CNN(),
        "femnist": fp.models.CNN2(),
    }
    assert model == models.get(name, fp.MLP(widths=(128, 64)))
    if scheme.startswith("labels"):
        assert spec.partition == fp.LabelShards(labels_per_client=int(scheme[-1]))
    assert spec.validation_fraction == 0.1


def test_curves_of_the_loss_vary_one_thing():
    expected = {
        "lam": ("algorithm.lam", (1.0, 3.0, 5.0), 3, 10),
        "epochs": ("algorithm.local.epochs", (1, 5, 10), 3, 10),
        "rho": ("algorithm.rho", (0.1, 0.5, 1.0), 3, 10),
        "cohort": ("participation.size", (10, 30, 50), 3, 100),
    }
    fixed = {"lam": (1.0, 0.1), "epochs": (5.0, 0.1), "rho": (3.0, 0.1)}
    fixed["cohort"] = (3.0, 0.03)
    for what, (field, values, epochs, num_clients) in expected.items():
        experiment = presets.get(f"flame_{what}_fmnist")
        (grid,) = experiment.grids
        assert grid.axes == {field: values}
        assert grid.spec.num_clients == num_clients
        assert grid.process.algorithm.local.epochs == epochs
        flame = grid.process.algorithm
        assert (flame.lam, flame.rho) == fixed[what]
        assert ("train", None) in experiment.evaluate_on


def test_attacks_have_the_strengths_of_text_and_release():
    strengths = {"paper": [0.1**0.5] * 3, "official": [0.01, 1.0, 1.0]}
    for profile, expected in strengths.items():
        found = grids(f"flame_attacks_{profile}_mnist_hybrid")
        assert all(grid.spec.num_clients == 50 for grid in found)
        attacks = [g.process.attack for g in found if g.process.attack is not None]
        stds = {type(attack): attack.std for attack in attacks}
        assert stds == dict(
            zip(
                (fp.attacks.SameValue, fp.SignFlip, fp.attacks.Gaussian),
                expected,
                strict=True,
            )
        )
        flame = [g for g in found if isinstance(g.process.algorithm, fp.Flame)]
        fractions = [g.axes["federation.malicious_fraction"] for g in flame]
        assert fractions == [(0.0,), *[(0.2, 0.5, 0.8)] * 4]
        poisoned = [g.spec.label_poisoning is not None for g in flame]
        assert poisoned == [False, True, False, False, False]


def test_multi_krum_is_told_the_fraction():
    for profile, selected in (("paper", None), ("official", 5)):
        told = []
        for grid in grids(f"flame_attacks_{profile}_fmnist_labels2"):
            krum = grid.process.algorithm
            if isinstance(krum, fp.MultiKrum):
                (fraction,) = grid.axes["federation.malicious_fraction"]
                told.append((krum.malicious_fraction, fraction, krum.num_selected))
        assert len(told) == 13
        assert all(a == b and c == selected for a, b, c in told)


def test_beyond_the_paper_every_method_meets_every_attack():
    found = grids("flame_beyond_mnist_hybrid")
    kinds = len(fp.algorithms.ATTACKS) + 2  # label poisoning, and none
    assert len(found) == 8 * kinds
    kinds = {type(grid.process.attack) for grid in found} - {type(None)}
    assert kinds == set(fp.algorithms.ATTACKS.values())
