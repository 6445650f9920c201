"""Fixtures of several files."""

import jax
import pytest


@pytest.fixture
def compilations():
    """Names of the programs that were compiled."""
    found = []

    def listen(event, duration_secs, fun_name=None, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)
