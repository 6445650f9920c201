"""`python -m experiments.run --streamed`."""

import numpy as np
import pytest

from experiments import run, sweep
from fedjax_pfl import results
from tests.command.test_experiments import RUNNER, refuse

pytestmark = pytest.mark.usefixtures("elsewhere", "no_figures")


@pytest.mark.wide
def test_a_streamed_run_is_the_run_in_memory():
    arguments = ["--set", "algorithm=flame", "--set", "participation=uniform"]
    arguments += ["--set", "participation.size=3", "--rounds", "4", "--eval-every", "2"]
    arguments += ["--seeds", "2", "--eval-clients", "all"]
    results_ = []
    for name, more in (("whole", []), ("rows", ["--streamed"])):
        command = [*arguments, *more, "--quiet", "--out", name]
        done = RUNNER.invoke(run.app, command)
        assert done.exit_code == 0, done.output
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
    again = RUNNER.invoke(run.app, ["--resume", "rows", "--quiet"])
    assert (again.exit_code, again.output) == (0, "rows\n")


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("Flame wants CoordinateMedian", ["--set", "aggregator=coordinate_median"]),
        ("not on 'everybody'", ["--eval-on", "test,everybody"]),
    ],
)
def test_what_cannot_be_streamed_is_refused(message, arguments):
    refuse(message, "--set", "algorithm=flame", "--streamed", *arguments, app=run.app)


def test_streaming_is_for_single_runs():
    done = RUNNER.invoke(sweep.app, ["--streamed"])
    assert done.exit_code == 2 and "No such option: --streamed" in done.output
    done = RUNNER.invoke(run.app, ["--streamed", "--diagnostics"])
    assert done.exit_code == 2 and "be combined with --diagnostics" in done.output
