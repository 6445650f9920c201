"""What tests of generated inputs share: how many they try, and what a refusal is."""

import contextlib
import pathlib
import resource
import signal
import tempfile

import hypothesis
import typer.testing
from hypothesis import strategies as st

from tests.trust import counts

RUNNER = typer.testing.CliRunner()
_CPU_SECONDS, _SECONDS = 60, 900  # for one input; machines may be busy
_GIB = 1 << 30


class TookTooLong(BaseException):
    """Not an `Exception`, as commands turn some of these into sentences."""


class Trials:
    """Generated inputs of one test: so many by default, and so many with `--long`."""

    def __init__(self, request, default, long):
        is_long = request.config.getoption("--long")
        self._settings = hypothesis.settings(
            max_examples=long if is_long else default,
            deadline=None,
            database=None,
            derandomize=True,
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
        )

    def run(self, what, strategy, is_refused):
        """Asks of every input whether it was refused; both outcomes must be seen."""
        outcomes = {True: 0, False: 0}

        @self._settings
        @hypothesis.given(strategy)
        def check(given):
            outcomes[bool(is_refused(given))] += 1

        check()
        said = f"{outcomes[False]} accepted, {outcomes[True]} refused"
        counts.add("inputs", what, sum(outcomes.values()), said)
        assert all(outcomes.values())


def is_sentence(text):
    """Whether a text is one sentence on one line."""
    return text[:1].isprintable() and text.endswith(".") and text.isprintable()


@contextlib.contextmanager
def bounded():
    """Ends what hangs, and refuses memory to what wants many gigabytes of it."""

    def ring(*_):
        raise TookTooLong

    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = {n: signal.signal(n, ring) for n in (signal.SIGPROF, signal.SIGALRM)}
    resource.setrlimit(resource.RLIMIT_AS, (used + 6 * _GIB, hard))
    signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run(app, arguments):
    """Runs a command; whether it refused its input, in one sentence or as usage."""
    with bounded():
        done = RUNNER.invoke(app, arguments)
    shown = f"{arguments}: {done.exception!r}\n{done.output}"
    assert done.exit_code in (0, 2), shown
    assert "Traceback" not in done.output, shown
    lines = done.stderr.splitlines()
    said = [line for line in lines if not line.startswith("Warning: ")]
    if done.exit_code == 0:
        assert not said, shown
    elif any(line.startswith("Error: ") for line in said):
        assert said[0].startswith("Usage: "), shown
    else:
        assert len(said) == 1 and is_sentence(said[0]), shown
    return done.exit_code == 2


@contextlib.contextmanager
def place():
    """A new directory, so that nothing is known of its files yet."""
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


def contents(folder):
    """Everything below a folder: bytes by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def mutated(draw, content):
    """A copy of some bytes with bits flipped, pieces cut out, put in or repeated."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "overwrite", "repeat"]))
        if kind == "flip" and at < len(changed):
            changed[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del changed[at : at + draw(st.sampled_from([1, 2, 8, 100, 10**6]))]
        elif kind == "repeat":
            changed[at:at] = changed[at : at + draw(st.integers(1, 50))]
        else:
            more = draw(st.binary(min_size=1, max_size=16))
            changed[at : at + len(more) * (kind == "overwrite")] = more
    return bytes(changed)
