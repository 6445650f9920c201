"""Commands start again under settings of the allocator, once, where they may."""

import os
import subprocess
import sys

import pytest

from fedjax_pfl.command import allocator

SCRIPT = """
import os, sys
from fedjax_pfl.command import allocator
if sys.argv[1] == "command":
    allocator.allow()
print(os.getpid(), sys.argv[2:], os.environ.get(allocator.VARIABLE))
allocator.settle()
print("worked", os.environ.get("MALLOC_MMAP_MAX_"))
"""


def lines(tmp_path, kind, **variables):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    clean = {n: v for n, v in os.environ.items() if n not in allocator.VARIABLES}
    clean.pop(allocator.VARIABLE, None)
    run = [sys.executable, str(script), kind, "a b", "--c=1"]
    done = subprocess.run(
        run, env=clean | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_a_command_starts_again_once_as_the_same_process(tmp_path):
    first, second, work = lines(tmp_path, "command")
    number, rest = first.split(" ", 1)
    assert rest == "['a b', '--c=1'] None"
    assert second == f"{number} ['a b', '--c=1'] huge-pages"
    assert work == "worked 0"


@pytest.mark.parametrize(
    ("kind", "variables"),
    [
        ("program", {}),
        ("command", {allocator.VARIABLE: "system"}),
        ("command", {"GLIBC_TUNABLES": "glibc.malloc.check=0"}),
    ],
)
def test_others_go_on_as_they_are(tmp_path, kind, variables):
    _, work = lines(tmp_path, kind, **variables)
    assert work == "worked None"
