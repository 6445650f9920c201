"""Templates for clusters: their syntax, their fields, and what they start."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from experiments.bench import command as bench
from fedjax_pfl.command import application
from tests.command import test_commands

ROOT = pathlib.Path(__file__).parents[2]
SLURM = ROOT / "templates/slurm_sweep.sh"
KUBERNETES = ROOT / "templates/kubernetes_sweep.yaml"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # which JAX has changed in this process


def slurm(folder, command, *arguments, **variables):
    """Runs the script as Slurm does, with a command in the place of `fedjax-pfl`."""
    (folder / "fedjax-pfl").write_text(f'#!/bin/sh\n{command} "$@"\n')
    (folder / "fedjax-pfl").chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return subprocess.Popen(
        ["bash", SLURM, *arguments],
        cwd=folder,
        env=os.environ | QUIET | {"PATH": path, "PYTHONPATH": str(ROOT)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def options_of(words):
    """Options of a command line of `fedjax-pfl`."""
    assert words[:2] == ["fedjax-pfl", "sweep"]
    return test_commands.options_of(words[1:], application.app)


def test_the_script_for_accelerators_runs_the_bench():
    script = ROOT / "templates/accelerator_bench.sh"
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text("utf-8").replace("\\\n", " ")
    words = shlex.split(text.splitlines()[-1].partition("experiments.bench ")[2])
    options = [word for word in words if word.startswith("--")]
    assert options == ["--accelerator", "--max-minutes", "--out"]
    done = CliRunner().invoke(bench.app, [*options[:1], "--list"])
    assert done.exit_code == 0 and "W1x10" in done.stdout
    help_page = CliRunner().invoke(bench.app, ["--help"]).stdout
    assert all(option in help_page for option in options)


def test_the_slurm_script_is_one_of_bash_with_known_directives():
    subprocess.run(["bash", "-n", SLURM], check=True)
    text = SLURM.read_text("utf-8")
    assert text.startswith("#!/bin/bash\n")
    directives = re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.M)
    found = dict(directives)
    assert len(found) == len(directives) == 9
    assert re.fullmatch(r"\d+-\d+", found["array"])
    assert re.fullmatch(r"\d\d:\d\d:\d\d", found["time"])
    assert re.fullmatch(r"\d+G", found["mem"]) and int(found["cpus-per-task"]) > 0
    assert re.fullmatch(r"B:TERM@\d+", found["signal"])  # of this shell, not of steps
    assert "%A" in found["output"] and "%a" in found["output"]
    # Slurm reads directives up to the first command.
    assert text.rindex("#SBATCH") < text.index("set -euo")


def test_the_slurm_script_joins_a_sweep(tmp_path):
    more = ["--preset", "digits", "--set", "model.widths=[8, 8]"]
    arguments = ("a folder", *more)
    command = slurm(tmp_path, "printf '%s\\n'", *arguments, SLURM_CPUS_PER_TASK="3")
    output, _ = command.communicate(timeout=60)
    options = options_of(["fedjax-pfl", *output.splitlines()])
    assert (options.out, options.join) == (pathlib.Path("a folder"), True)
    assert (options.devices, options.set_) == (3, more[3:])
    nothing = slurm(tmp_path, "echo")
    output, _ = nothing.communicate(timeout=60)
    assert (
        nothing.returncode != 0 and "expected a folder that all nodes share" in output
    )


@pytest.mark.wide
def test_two_tasks_of_the_slurm_script_make_one_result(tmp_path):
    run = shlex.join([sys.executable, "-m", "fedjax_pfl.command"])
    small = ("out", "--preset", "quadratic", "--rounds", "3", "--seeds", "1", "--quiet")
    tasks = [slurm(tmp_path, run, *small) for _ in range(2)]
    for task in tasks:
        output, _ = task.communicate(timeout=240)
        assert (task.returncode, output) == (0, "out\n")
    assert (tmp_path / "out/summary.csv").is_file()


def test_the_kubernetes_manifest_is_an_indexed_job_that_joins_a_sweep():
    claim, job = yaml.safe_load_all(KUBERNETES.read_text("utf-8"))
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] > 1  # all wait for the last one
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] in ("OnFailure", "Never")  # which jobs allow
    (container,), (volume,) = pod["containers"], pod["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    words = [*container["command"], *container["args"]]
    assert all(isinstance(word, str) for word in words)
    options = options_of(words)
    assert options.join and options.out.is_relative_to(mount["mountPath"])
    assert str(options.devices) == container["resources"]["limits"]["cpu"]
