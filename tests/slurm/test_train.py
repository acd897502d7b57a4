"""`slurm/train.sbatch` on a real Slurm: it trains with both launchers, survives, is preempted, and goes on."""

from __future__ import annotations

import pytest

from ddrl import metrics
from tests.parallel.support import events, kill, lines, newest, result

pytestmark = pytest.mark.timeout(300)
NODES = ("--nodes=3", "--ntasks-per-node=1")
SETTINGS = """\
SERVERS=1 REQUEUE=yes RESTARTS=0
OPTIONS=(--preset smoke --no-evaluator --workers 2 --max-updates {updates} {more})
"""


def settings(updates: int, more: str = "") -> str:
    return SETTINGS.format(updates=updates, more=more)


def test_srun_trains_to_the_end_on_three_nodes(submit):
    job = submit("train.sbatch", settings(200), *NODES, launcher="srun")
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    print(job.output)
    assert result(job.run)["status"] == "finished" and newest(job.run).version == 200
    assert job.output.count("finished: the budget of 200 updates is used up") == 1, "rank 0 speaks, and no other"
    assert "learning curve:" in job.output and (job.run / "learning_curve.png").exists()
    assert f"ddrl train --resume {job.run}" in job.output
