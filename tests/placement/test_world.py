"""The rest before the first message."""

import sys
import time
from types import SimpleNamespace

import pytest

from ddrl.placement.world import SETTLING_SECONDS, settled_world


@pytest.mark.parametrize(("ranks", "rests"), [(1, []), (2, [SETTLING_SECONDS]), (300, [SETTLING_SECONDS])])
def test_only_a_rank_that_has_others_rests_and_only_once(monkeypatch, ranks, rests):
    world, rested = SimpleNamespace(Get_size=lambda: ranks), []
    # Not the real one: its import would start MPI in every process that collects tests.
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=world)))
    monkeypatch.setattr(time, "sleep", rested.append)
    settled_world.cache_clear()
    try:
        assert settled_world() is settled_world() is world
    finally:
        settled_world.cache_clear()
    assert rested == rests
