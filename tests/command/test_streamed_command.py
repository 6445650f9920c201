"""`python -m experiments.run --streamed`."""

import numpy as np
import pytest

from experiments import run, sweep
from fedjax_pfl import results
from tests.command.commands import call, refused

pytestmark = pytest.mark.usefixtures("elsewhere", "no_figures")


@pytest.mark.wide
def test_a_streamed_run_is_the_run_in_memory():
    line = "--set algorithm=flame --set participation=uniform --rounds 4 --seeds 2"
    line += " --set participation.size=3 --eval-every 2 --eval-clients all --quiet"
    results_ = []
    for name, more in (("whole", ""), ("rows", "--streamed")):
        call(run.app, f"{line} {more} --out {name}")
        results_.append(results.Result.load(name))
    rows = results_[1]
    # Every seed has files of its own.
    configs = [group.config["execution"] for group in rows.groups]
    assert len(configs) == 2 and all(c.startswith("streamed, ") for c in configs)
    one, other = (result.table().drop(columns="status") for result in results_)
    both = one.merge(other, on=[n for n in one if n != "value"], suffixes=("", "_rows"))
    assert len(both) == len(one) == len(other)
    # 4 rounds of products in float64, which are not in the same order.
    np.testing.assert_allclose(both["value_rows"], both["value"], rtol=1e-9)
    assert call(run.app, "--resume rows --quiet").output == "rows\n"


@pytest.mark.parametrize(
    ("app", "line", "message"),
    [
        (run.app, "--set aggregator=coordinate_median", "Flame wants CoordinateMedian"),
        (run.app, "--diagnostics", "be combined with --diagnostics"),
        (sweep.app, "", "No such option: --streamed"),
    ],
)
def test_what_cannot_be_streamed_is_refused(app, line, message):
    assert message in refused(app, f"--set algorithm=flame --streamed {line}")
