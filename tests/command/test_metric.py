"""`--metric`: what chooses, stops and ranks, in commands and in reports."""

import pytest

import fedjax_pfl as fp
from experiments import sweep
from fedjax_pfl.command import application
from tests import histories
from tests.command.commands import call, refused
from tests.report import reports

pytestmark = pytest.mark.usefixtures("elsewhere", "no_figures")
SMALL = "--clients 6 --seeds 2 --rounds 3 --eval-every 1 --quiet"
SMALL += " --set federation.partition=iid"


def test_a_sweep_keeps_the_metric_and_a_report_takes_another(tmp_path):
    options = "--algorithm local,fedavg --metric macro_f1 --patience 1 --out found"
    call(sweep.app, f"{SMALL} {options}")
    result = fp.Result.load(tmp_path / "found")
    assert result.headline == "macro_f1" and "macro_f1" in result.summary()
    assert "metric" not in result.fields
    assert "has the best mean macro f1" in str(result)
    assert "macro_f1" in (tmp_path / "found/experiment.json").read_text("utf-8")
    headline = tmp_path / "found/report_files/tables/headline.md"
    for given, shown in (("", "macro f1"), ("--metric loss", "loss")):
        call(application.app, f"report found {given}")
        assert f"| {shown} |" in headline.read_text("utf-8")


@pytest.mark.parametrize("options", ["", "--tune 3", "--target 0.5"])
def test_metrics_that_are_not_measured_are_refused_before_training(options):
    line = f"{SMALL} --metric auc --algorithm ditto --out found {options}"
    measured = "measured, accuracy, balanced_accuracy, loss, macro_f1, got 'auc'"
    assert measured in refused(sweep.app, line)


def test_a_report_refuses_metrics_that_were_not_measured(tmp_path):
    (folder,) = reports.saved(tmp_path, reports.grid_result())
    sentence = refused(application.app, "report --metric auc", folder)
    assert sentence.endswith("measured, accuracy, loss, got 'auc'.\n")
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    "words", [["weighted mean"], ["weighted mean", "best of each"]]
)
def test_tables_of_before_had_fewer_rows(tmp_path, words):
    (folder,) = reports.saved(tmp_path, histories.make_result(histories.make_history()))
    file = folder / "summary.csv"
    lines = file.read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not any(word in line for word in words)]
    assert len(kept) < len(lines)
    file.write_text("".join(kept), "utf-8")
    call(application.app, "report", folder)
    file.write_text("".join(kept[:-1]), "utf-8")
    assert "does not agree with the" in refused(application.app, "report", folder)
