"""Commands in processes of their own that start fast enough to be killed by the dozen.

They are forked from a server that has imported everything but has not used JAX yet.
"""

import dataclasses
import glob
import importlib
import itertools
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

from fedjax_pfl import results

MODULES = ["fedjax_pfl.command.job", "fedjax_pfl.results.checkpoint"]
MODULES += ["orbax.checkpoint"]
# Checkpoints as often as there are evaluations.
_SMALL = (
    *("--preset", "quadratic", "--set", "algorithm.local=sgd", "--rounds", "12"),
    *("--eval-every", "1", "--checkpoint-seconds", "0"),
)
ONE = (*_SMALL, "--set", "algorithm=fedavg")
# Two groups (one grid of two points).
ARGUMENTS = (*_SMALL, "--set", "algorithm=flame,fedavg", "--seeds", "2")
_numbers = itertools.count()


def _child(name, arguments, directory, output, cache, limits):
    """What a process does: the command, with output in a file."""
    os.chdir(directory)
    stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    sys.stdout = os.fdopen(1, "w", 1, "utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", closefd=False)
    os.environ.pop("XLA_FLAGS", None)
    import jax

    from fedjax_pfl.command import job, prepare

    module = importlib.import_module(f"experiments.{name}")
    job.compilation_cache.keep = lambda: None
    job.figures.save_all = lambda *_: []  # two seconds a process
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for limit in limits:
        limit()
    sys.argv = [name, *arguments]
    prepare()
    module.app()


@dataclasses.dataclass
class Command:
    """A running command."""

    process: multiprocessing.Process
    output: pathlib.Path

    def wait(self, seconds=120):
        """Waits for its end; its exit status, negative for a signal."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running: {self.text()}"
        return self.process.exitcode

    def text(self):
        return self.output.read_text("utf-8") if self.output.exists() else ""

    def wait_for(self, there, seconds=120):
        """Waits until a function says so, while the process lives."""
        end = time.monotonic() + seconds
        while not there():
            assert self.process.is_alive(), self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.005)


def start(directory, *arguments, cache, limits=(), name="sweep"):
    """Starts `python -m experiments.NAME` with these arguments in a directory."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # as commands do before JAX is imported
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    output = pathlib.Path(directory) / f"output-{next(_numbers)}.txt"
    given = (name, arguments, str(directory), str(output), str(cache), limits)
    process = context.Process(target=_child, args=given)
    process.start()
    return Command(process, output)


def start_python(directory, *words, cache, before=(), variables=None, **more):
    """Starts `BEFORE python WORDS` in a directory: a command with all its start-up."""
    root = pathlib.Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": str(root), "JAX_COMPILATION_CACHE_DIR": cache}
    env |= variables or {}
    del env["XLA_FLAGS"]
    return subprocess.Popen(
        [*before, sys.executable, *words],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more,
    )


def assert_same(one, other):
    """Bit for bit the same, but for the clock."""
    one, other = (results.Result.load(path) for path in (one, other))
    assert len(one.groups) == len(other.groups) > 0
    for a, b in zip(one.groups, other.groups, strict=True):
        for name, value in vars(a).items():
            if not name.endswith("_seconds"):
                np.testing.assert_equal(getattr(b, name), value, err_msg=name)


def newest(folder):
    """The newest checkpoint of each group, by name of the group."""
    found = glob.glob("0*/[0-9]*", root_dir=folder / "checkpoints")
    return dict(sorted(os.path.split(path) for path in found))
