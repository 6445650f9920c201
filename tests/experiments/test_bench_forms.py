"""The command `python -m experiments.bench --accelerator`: forms, limits, tables."""

import dataclasses
import json
import math
import os
import time

import jax
import pytest
import typer.testing

import fedjax_pfl as fp
from experiments.bench import (
    command,
    contenders,
    forms,
    machine,
    rounding,
    timing,
    worker,
    workloads,
)
from fedjax_pfl.engine import cost
from fedjax_pfl.models import layers

RUNNER = typer.testing.CliRunner()
SHAPE = (4, 4)
SOFTMAX = workloads.softmax("soft", "a tiny one", (6,) * 9, 4, peers=(), shape=SHAPE)
GRID = dataclasses.replace(
    SOFTMAX, name="grid", axes={"algorithm.lam": (0.5, 1.0, 2.0)}
)
NETWORK = workloads.cnn(
    (3, 3), model=workloads.BenchCNN(filters=(2, 3), hidden=4), shape=(16, 16, 1)
)


def run(*arguments):
    return RUNNER.invoke(command.app, ["--accelerator", *map(str, arguments)])


@pytest.fixture
def tiny(monkeypatch):
    """Tiny workloads, measured in this process, in samples of one call."""
    small = {one.name: one for one in (SOFTMAX, GRID)}
    monkeypatch.setattr(forms, "CASES", small)
    monkeypatch.setattr(timing, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(timing, "MORE_SECONDS", 0.0)
    monkeypatch.setattr(machine, "_SIZE", 64)
    monkeypatch.setattr(machine, "_COPIED", 4096)
    monkeypatch.setattr(machine, "pin", lambda threads: None)
    monkeypatch.setattr(jax, "device_count", lambda: 1)

    def output(module, name, repeat, *, environment):
        assert (module, name) == ("worker", worker.MACHINE)
        return json.dumps(worker.device(int(repeat)))

    def lines(module, repeat, first, *names, environment, seconds):
        assert module == "experiments.bench.forms"
        for numbers in forms.measure(names, int(first), int(repeat)):
            yield json.dumps(numbers)

    monkeypatch.setattr(machine, "output", output)
    monkeypatch.setattr(machine, "lines", lines)
    monkeypatch.setattr(forms, "_battery", lambda run: ["right"])


def test_versions_are_ten_times_as_large():
    assert list(forms.CASES) == [f"W{k}{x}" for x in ("", "x10") for k in range(1, 7)]
    for name, base in workloads.WORKLOADS.items():
        large = forms.CASES[f"{name}x10"]
        assert large.cohort_size == 10 * base.cohort_size
        for work in ("steps_per_round", "flops_per_round"):
            assert getattr(large, work) == pytest.approx(10 * getattr(base, work))


def test_a_round_moves_examples_and_parameters():
    examples, steps = 9 * 6, 9 * 2
    assert SOFTMAX.least_bytes_per_round(170) == examples * 16 + steps * 2 * 4 * 170
    assert GRID.least_bytes_per_round(170) == examples * 16 + 3 * steps * 2 * 4 * 170


def test_every_execution_point_convolution_and_product_is_a_form():
    alone = forms.of(SOFTMAX, 1)
    assert [f.execution for f in alone if not f.bfloat16_products] == [
        *("auto", "vmap", "chunk=8", "chunk=1")
    ]
    assert len(alone) == 8 and alone[0].is_automatic
    assert "shard" in [form.execution for form in forms.of(SOFTMAX, 2)]
    assert {form.points for form in forms.of(GRID, 1)} == {None, 3, 1}
    images = forms.of(forms.CASES["W3x10"], 1)
    assert {form.convolution for form in images} == {None, *layers.CONVOLUTIONS}
    assert {form.execution for form in images} == {
        *("auto", "vmap", "chunk=64", "chunk=8", "chunk=1")
    }
    assert len(set(images)) == len(images) == 5 * (4 + 3)


def test_what_is_picked_comes_first_and_several_changes_last(monkeypatch):
    monkeypatch.setattr(forms, "CASES", {"soft": SOFTMAX, "grid": GRID})
    pairs = forms.ordered(["soft", "grid"], 1)
    assert len(pairs) == len(forms.of(SOFTMAX, 1)) + len(forms.of(GRID, 1))
    assert [name for name, _ in pairs[:3]] == ["soft", "grid", "soft"]
    assert all(form.is_automatic for _, form in pairs[:2])
    assert [form.execution for _, form in pairs[2:5]] == ["vmap", "chunk=8", "chunk=1"]
    last = pairs[-1][1]
    assert (last.execution, last.points, last.bfloat16_products) == ("chunk=1", 1, True)


def test_forms_of_convolutions_train_the_same():
    results = {}
    for form in (None, *layers.CONVOLUTIONS):
        model = dataclasses.replace(NETWORK.model, convolution=form)
        group = dataclasses.replace(NETWORK, model=model).group()
        ours = contenders.Ours(group, 2)
        ours.run()
        results[form] = ours.result()
        has_xla = "convolution(" in ours.compiled().as_text()
        assert has_xla == (form == "xla")
    for form in layers.CONVOLUTIONS:
        assert contenders.relative_difference(results[None], results[form]) < 1e-12


def test_all_forms_are_measured_printed_and_written(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "forms.json"
    done = run("--repeat", 3, "--max-minutes", 5, "--out", file)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("This is a CPU")
    for words in ("bfloat16 product", "of peak", "of bandwidth", "program MB"):
        assert words in done.stdout
    found = json.loads(file.read_text("utf-8"))
    device = found["machine"]
    assert device["backend"] == "cpu" and device["bfloat16_matmul_gflops"] > 0
    assert found["left_out"] == []
    soft = [one for one in found["forms"] if one["workload"] == "soft"]
    # Each program once: on a CPU nine clients in chunks of 8 take two of 5.
    assert [(one["execution"], one["bfloat16_products"]) for one in soft] == [
        (execution, rounded)
        for rounded in (False, True)
        for execution in ("vmap", "chunk=8", "chunk=1")
    ]
    assert [one["is_automatic"] for one in soft] == [True, False, False] * 2
    for one in soft:
        seconds = one["seconds_per_round"]["wall"]
        moved = one["least_bytes_per_round"] / device["copy_gigabytes"] / 1e9
        assert one["share_of_bandwidth"] == pytest.approx(moved / seconds)
        assert one["program_bytes"] > 9 * 170 * 4
        assert one["compile_seconds"] > 0
        rate = one["flops_per_round"] / seconds / 1e9
        prefix = "bfloat16_" if one["bfloat16_products"] else ""
        peak = device[f"{prefix}matmul_gflops"]
        assert one["share_of_peak"] == pytest.approx(rate / peak)
    grid = [one for one in found["forms"] if one["workload"] == "grid"]
    assert {one["points_per_chunk"] for one in grid} == {1, 3}


def test_the_time_limit_names_what_it_leaves_out(tiny, monkeypatch):
    def lines(module, repeat, first, *names, environment, seconds):
        limit = seconds()
        assert 0 < limit <= 0.06  # a tenth of the minutes
        yield json.dumps({"left_out": ""})
        time.sleep(0.7)
        assert seconds() < 0
        raise machine.UnavailableError("the process said nothing")

    monkeypatch.setattr(machine, "lines", lines)
    done = run("--repeat", 3, "--max-minutes", 0.01, "--only", "soft")
    assert done.exit_code == 0, done.output
    assert "soft: 7 form(s) left out: the time was up." in done.stdout


def test_a_form_that_takes_a_tenth_of_the_minutes_is_left_out_alone(tiny, monkeypatch):
    begun = []

    def lines(module, repeat, first, *names, environment, seconds):
        begun.append(int(first))
        if int(first) == 0:
            yield json.dumps({"left_out": ""})
            limit = seconds()
            assert 0 < limit <= 0.6
            raise machine.UnavailableError(f"it took more than {limit:.0f} s")
        for _ in forms.of(SOFTMAX, 1)[int(first) :]:
            yield json.dumps({"left_out": ""})

    monkeypatch.setattr(machine, "lines", lines)
    done = run("--repeat", 3, "--max-minutes", 0.1, "--only", "soft")
    assert done.exit_code == 0, done.output
    assert begun == [0, 2]
    assert "soft: 1 form(s) left out: it took more than 1 s." in done.stdout


def test_a_form_that_ends_its_process_is_left_out_alone(tiny, monkeypatch):
    begun = []

    def lines(module, repeat, first, *names, environment, seconds):
        assert seconds() == math.inf
        begun.append(int(first))
        if int(first) == 3:
            raise machine.UnavailableError("RESOURCE_EXHAUSTED: Out of memory.")
        for number in range(int(first), len(forms.of(SOFTMAX, 1))):
            if number == 3:
                raise machine.UnavailableError("Killed")
            yield json.dumps({"left_out": ""})

    monkeypatch.setattr(machine, "lines", lines)
    done = run("--repeat", 3, "--only", "soft")
    assert done.exit_code == 0, done.output
    assert begun == [0, 4]
    assert "soft: 1 form(s) left out: Killed." in done.stdout


def test_a_process_that_fails_after_its_last_form_leaves_nothing_out(tiny, monkeypatch):
    def lines(module, repeat, first, *names, environment, seconds):
        for _ in forms.of(SOFTMAX, 1):
            yield json.dumps({"left_out": ""})
        raise machine.UnavailableError("Killed")

    monkeypatch.setattr(machine, "lines", lines)
    done = run("--repeat", 3, "--only", "soft")
    assert done.exit_code == 0, done.output
    assert "left out" not in done.stdout


def test_what_does_not_fit_into_memory_is_not_run(tiny, monkeypatch):
    monkeypatch.setattr(cost, "available_bytes", lambda: 10)
    monkeypatch.setattr(contenders.Ours, "run", lambda self: pytest.fail("runs"))
    reasons = [numbers["left_out"] for numbers in forms.measure(["soft"], 6, 3)]
    assert len(reasons) == 2
    assert all(
        reason.endswith("of memory, of which 10 B are free") for reason in reasons
    )


def test_a_process_is_killed_when_a_line_takes_too_long():
    started = time.monotonic()
    arguments = ("experiments.bench.worker", worker.MACHINE, "3")
    with pytest.raises(machine.UnavailableError, match="^it took more than 0 s$"):
        list(machine.lines(*arguments, seconds=lambda: 0.2))
    assert time.monotonic() - started < 30


def test_a_process_whose_lines_nobody_reads_is_killed():
    arguments = ("http.server", "--bind", "127.0.0.1", "0")
    unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
    lines = machine.lines(*arguments, environment=unbuffered)
    assert next(lines).startswith("Serving")
    lines.close()  # which waits for the process


def test_a_call_of_an_accelerator_has_more_rounds(tiny, monkeypatch):
    on_cpu = next(forms.measure(["soft"], 0, 3))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    elsewhere = next(forms.measure(["soft"], 0, 3))
    assert on_cpu["rounds_per_call"] == SOFTMAX.rounds
    assert elsewhere["rounds_per_call"] == 5 * SOFTMAX.rounds
    assert elsewhere["execution"] == "vmap"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "A1"), "Unknown workload 'A1'"),
        (("--against", "torch"), "expected neither --against nor --check"),
        (("--max-minutes", "x"), "Invalid value for '--max-minutes'"),
        (("--max-minutes", "0"), "Invalid value for '--max-minutes'"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_the_time_limit_is_that_of_forms():
    done = RUNNER.invoke(command.app, ["--max-minutes", "1"])
    assert done.exit_code == 2 and "with --accelerator only" in done.stderr
    listed = run("--list")
    assert "W3x10: ten times the clients a round of W3" in listed.stdout


def test_rounded_products_are_compared_from_equal_seeds():
    algorithm = fp.Flame(local=fp.SGD(batch_size=10))
    with pytest.warns(UserWarning, match="slower on a CPU"):
        found = list(rounding.rows(algorithm, fp.LogisticRegression(), 1, 2))
    assert [row[:3] for row in found] == [
        ["LogisticRegression", f"Flame, {judged}", metric]
        for judged in ("global", "personal")
        for metric in ("accuracy", "loss")
    ]
    for *_, full, rounded, difference in found:
        assert full[:3] == rounded[:3] and difference[0] in "+-"
    losses = [row[5] for row in found if row[2] == "loss"]
    assert any(text.partition(" ")[0].strip("+-0.") for text in losses)
