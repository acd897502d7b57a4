"""A short soak: the benchmark of faults with real ranks, and its figures from made-up kills."""

from __future__ import annotations

import json
import sys

import pytest

from ddrl.bench.faults import Kill, summary
from tests.parallel.support import Job, needs_mpirun


@needs_mpirun
@pytest.mark.timeout(400)
def test_three_random_kills_lose_nothing_that_was_saved(tmp_path):
    target = tmp_path / "kills.json"
    (tmp_path / "soak").mkdir()  # the log of the job is there too
    argv = [sys.executable, "-m", "ddrl.cli", "bench", "faults", "--kills", "3", "--json", str(target), "--seed", "2"]
    with Job([*argv, "--directory", str(tmp_path / "soak")], tmp_path / "soak" / "run") as job:
        assert job.wait(360.0) == 0, job.output
    found = json.loads(target.read_text())
    assert found["kills"] == sum(found["of_them"].values()) == 3
    assert found["hangs"] == found["corrupted_checkpoints"] == found["checkpoints_lost"] == 0


def test_the_figures_of_a_soak():
    kills = [
        Kill("worker", False, detected_seconds=0.1, training_seconds=0.5),
        Kill("chief", False, detected_seconds=0.3, training_seconds=12.0, restarted=True, updates_lost=40),
        Kill("chief", True, detected_seconds=9.0, training_seconds=20.0, restarted=True, updates_lost=0),
        Kill("worker", False, hung=True, corrupted=1, checkpoint_lost=True),
    ]
    found = summary(kills)
    assert found["of_them"] == {"chief": 2, "worker": 2} and found["during_a_start"] == 1
    assert (found["hangs"], found["corrupted_checkpoints"], found["checkpoints_lost"]) == (1, 1, 1)
    assert found["seconds_until_seen"] == {"median": 0.2, "most": 0.3}
    assert found["seconds_until_training_again"] == {"median": 16.0, "most": 20.0}
    assert found["updates_lost"] == {"median": 20.0, "most": 40.0}
