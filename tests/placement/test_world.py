"""The rest before the first message."""

import time

import pytest
from mpi4py import MPI

from ddrl.placement.world import SETTLING_SECONDS, settled_world


@pytest.mark.parametrize(("ranks", "rests"), [(1, []), (2, [SETTLING_SECONDS]), (300, [SETTLING_SECONDS])])
def test_only_a_rank_that_has_others_rests_and_only_once(monkeypatch, ranks, rests):
    class World:
        @staticmethod
        def Get_size():
            return ranks

    rested = []
    monkeypatch.setattr(MPI, "COMM_WORLD", World)
    monkeypatch.setattr(time, "sleep", rested.append)
    settled_world.cache_clear()
    try:
        assert settled_world() is settled_world() is World
    finally:
        settled_world.cache_clear()
    assert rested == rests
