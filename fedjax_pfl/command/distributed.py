"""One training of several processes, connected by JAX's own runtime."""

import contextlib
import json
import signal
import socket
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import jax

from fedjax_pfl.command import arguments, errors, signals, watched
from fedjax_pfl.core import checks, processes

__all__ = ["check_alike", "connected"]

_TRY_AGAIN = 0.2
_LAST = 1.0
_SILENCE = 30  # seconds after which JAX considers a process lost
_LOCAL = ("127.0.0.1", "localhost")


@contextlib.contextmanager
def connected(options: arguments.Options) -> Iterator[None]:
    """Connects this process to the others for a block; call it before JAX is used."""
    _connect(options)
    # The first process leaves last: it runs the service that the others need.
    signals.leave_after(_LAST if processes.is_first() else 0.0)
    try:
        yield
        processes.first(None)  # all wait for the one that writes
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if not any(word in str(error) for word in ("Gloo", "NCCL", "oordination")):
            raise
        raise errors.StoppedError(watched.LOST, watched.STATUS) from None


def _connect(options: arguments.Options) -> None:
    """Connects this process to the others."""
    # JAX reads it when it makes its CPU devices.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    options_here: dict[str, Any] = {}
    if options.coordinator is not None:
        host, port = options.address
        if options.process_id:
            _wait_for(host, port, options.connect_seconds)
        # Else JAX would listen at all addresses of the machine.
        if host in _LOCAL:
            options_here["coordinator_bind_address"] = options.coordinator
    try:
        jax.distributed.initialize(
            options.coordinator,
            options.num_processes,
            options.process_id,
            initialization_timeout=round(options.connect_seconds),
            heartbeat_timeout_seconds=_SILENCE,
            **options_here,
        )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise checks.InputError(
            "JAX cannot connect the processes; give --coordinator, --num-processes and"
            f" --process-id if it does not detect the cluster: {reason}."
        ) from None
    # JAX has replaced the handler of SIGTERM in C++; restore the command's.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _wait_for(host: str, port: int, seconds: float) -> None:
    """Waits until the first process listens: JAX would end this one with a trace."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            return
        except OSError as error:
            if time.monotonic() >= end:
                raise checks.InputError(
                    f"Expected --process-id 0 at {host}:{port}, but got no answer there"
                    f" for {seconds:g} seconds: {error.strerror or error}."
                ) from None
        time.sleep(_TRY_AGAIN)


def check_alike(**parts: dict[str, Any]) -> None:
    """Refuses processes with different trainings; does nothing for one process."""
    zeroth, *later = map(json.loads, processes.gathered(json.dumps(parts)))
    for number, values_there in enumerate(later, start=1):
        for part, values in zeroth.items():
            for name in dict.fromkeys([*values, *values_there[part]]):
                ours, theirs = values.get(name), values_there[part].get(name)
                if ours != theirs:
                    raise checks.InputError(
                        f"Expected the same {part} in all processes, but {name} is"
                        f" {_short(ours)} in process 0 and {_short(theirs)}"
                        f" in process {number}."
                    )


def _short(value: Any) -> str:
    """Formats a value as text that is short enough for a sentence."""
    return textwrap.shorten(json.dumps(value), 80)
