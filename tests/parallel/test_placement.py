"""The topology gathered over MPI, and what the command line makes of it, with real ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cluster.launch import find_mpirun, inspect_mpirun, mpirun_command, rank_environment
from tests.parallel.support import Job, needs_mpirun

pytestmark = needs_mpirun
ROLES = """
import os, runpy, sys
from cluster.job import detect_job
rank = detect_job(os.environ).rank
os.environ["DDRL_ROLE"] = {roles!r}.split()[rank]
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1" if rank < 2 else ""
sys.argv = {argv!r}
runpy.run_module("ddrl.cli", run_name="__main__")
"""


def start(tmp_path: Path, roles: str, *options: str) -> Job:
    argv = ["ddrl", "plan", "ba3c", "--preset", "smoke", *options]
    program = [sys.executable, "-c", ROLES.format(roles=roles, argv=argv)]
    launcher = inspect_mpirun(find_mpirun() or "")
    return Job(mpirun_command(4, program, False, launcher), tmp_path / "run", rank_environment(as_root=True))


def test_every_rank_is_placed_where_it_sits_and_rank_0_alone_prints(tmp_path):
    target = tmp_path / "plan.json"
    with start(tmp_path, "worker worker evaluator parameter_server", "--json", str(target)) as job:
        assert job.wait() == 0, job.output
    answer = json.loads(target.read_text())
    assert answer["source"] == "this job"
    assert [rank["role"] for rank in answer["ranks"]] == ["worker", "worker", "evaluator", "parameter_server"]
    assert [rank["gpu"] for rank in answer["ranks"]] == ["0", "1", "", ""]
    assert "ranks on" not in job.output


def test_a_wish_that_cannot_be_is_one_line_of_rank_0(tmp_path):
    with start(tmp_path, "worker worker parameter_server parameter_server") as job:
        assert job.wait() != 0
    lines = [line for line in job.output.splitlines() if line.startswith("ddrl: ")]
    assert len(lines) == 1 and "2 ranks with DDRL_ROLE=parameter_server, and the settings need 1" in lines[0]
