"""How long a supervisor waits for ranks that have a result: until they could save, or not at all."""

from __future__ import annotations

import io
import os
import sys
import time

import pytest
from rich.console import Console

from ddrl import rundir
from ddrl.config import TrainConfig
from ddrl.launch import start, supervisor
from ddrl.launch.processes import Interrupts, session_members


class Silent:
    def update(self, records):
        pass


def watched(path, stop_seconds):
    """A process that never ends by itself, watched to its end."""
    with Interrupts() as interrupts, (path / "log.txt").open("ab") as log:
        one = supervisor.Supervisor(TrainConfig(), path, interrupts, stop_seconds)
        one.start([sys.executable, "-c", "import time; time.sleep(60)"], False, log, log.fileno())
        one.watch(Silent(), rundir.JsonLines(path / rundir.METRICS), Console(file=io.StringIO()))
    assert not session_members(one._process.pid)
    return one.overdue


@pytest.mark.parametrize("content, limit", [({"lost": "server 0 died"}, "0.4"), ({"status": "finished"}, "0.8")])
def test_after_a_loss_there_is_nothing_to_wait_for(tmp_path, monkeypatch, content, limit):
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 0.4)
    rundir.write_json(tmp_path / rundir.RESULT, content)
    assert watched(tmp_path, stop_seconds=0.8) == f"the ranks did not end within {limit} s and were killed"


def test_without_patience_for_a_stop_there_is_none_for_a_loss(tmp_path):
    rundir.write_json(tmp_path / rundir.RESULT, {"lost": "server 0 died"})
    began = time.monotonic()
    assert "0.2 s" in watched(tmp_path, stop_seconds=0.2)
    assert time.monotonic() - began < supervisor.LOST_SECONDS


def test_a_rank_is_missing_until_it_has_come_to_mpi(tmp_path):
    start.leave_note(tmp_path, {"PMI_RANK": "0"}, arrived=True)
    start.leave_note(tmp_path, {"OMPI_COMM_WORLD_RANK": "1"}, arrived=False)
    start.leave_note(tmp_path, {}, arrived=True)  # a run of one process
    assert start.missing(tmp_path, 3) == [1, 2]
    start.leave_note(tmp_path, {"OMPI_COMM_WORLD_RANK": "1"}, arrived=True)
    assert start.missing(tmp_path, 2) == []
    assert start.gone(tmp_path, [os.getpid()]) == [] and start.gone(tmp_path, []) == [0, 1]
    start.clear_notes(tmp_path)
    assert start.missing(tmp_path, 2) == [0, 1] and start.missing(tmp_path / "nowhere", 1) == [0]
