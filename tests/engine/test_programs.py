"""What is kept of compiled programs."""

import collections

import psutil
import pytest

from fedjax_pfl.engine import cost, programs


@pytest.mark.parametrize(("share", "is_dropped"), [(0.5, True), (2.0, False)])
def test_programs_are_dropped_where_half_of_the_memory_is_used(
    monkeypatch, share, is_dropped
):
    used, dropped = psutil.Process().memory_info().rss, []
    monkeypatch.setattr(programs.jax, "clear_caches", lambda: dropped.append(True))
    monkeypatch.setattr(programs, "_has_many_maps", lambda: False)
    monkeypatch.setattr(cost, "available_bytes", lambda *, host: int(share * used))
    monkeypatch.setattr(programs, "_left", collections.deque([0], maxlen=1))
    programs.forget_if_needed()
    programs.forget_if_needed()  # the memory has not grown since then
    assert dropped == [True] * is_dropped


def test_programs_are_dropped_where_half_of_the_maps_are_used(monkeypatch, tmp_path):
    dropped, limit = [], tmp_path / "max_map_count"
    monkeypatch.setattr(programs.jax, "clear_caches", lambda: dropped.append(True))
    monkeypatch.setattr(programs, "_has_half_of_memory", lambda: False)
    monkeypatch.setattr(programs, "_LIMIT", limit)
    for allowed in (10**9, 2):
        limit.write_text(str(allowed))
        programs.forget_if_needed()
    assert dropped == [True]
