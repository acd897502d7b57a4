"""Whole runs that begin with the parameters of another one, to the bit, and go on when that one is gone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddrl.checkpoint import checkpoint_path
from ddrl.roles.hashes import parameter_hash
from tests.parallel.support import EXACT, copy_run, events, finish, hashes, needs_mpirun, newest, program

pytestmark = pytest.mark.timeout(300)

PLUGIN = Path(__file__).parents[1] / "of_users" / "reinforce.py"
SINGLE = ("--workers", "1", "--parameter-servers", "0")
SERVER = ("--workers", "2", "--parameter-servers", "1")
ALLREDUCE = ("--workers", "2", "--exchange", "allreduce")
NEW = ("--seed", "2", "--learning-rate", "1e-4", "--deterministic")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of 20 updates in one process."""
    run = tmp_path_factory.mktemp("source") / "run"
    finish(run, *EXACT, *SINGLE, "--max-updates", "20")
    return run


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(SINGLE, id="one process"),
        pytest.param(SERVER, id="parameter server", marks=needs_mpirun),
        pytest.param(ALLREDUCE, id="all-reduce", marks=needs_mpirun),
    ],
)
def test_version_0_is_that_of_the_source_and_a_resume_does_not_need_it(source, tmp_path, ranks):
    earlier, run = copy_run(source, tmp_path / "earlier"), tmp_path / "run"
    wanted = newest(earlier)
    finish(run, *EXACT, *ranks, *NEW, "--max-updates", "20", "--init-from", str(earlier))
    assert hashes(run)["0"] == parameter_hash(wanted.parameters) and newest(run).version == 20
    (began,) = events(run, "started")
    told = {"file": str(checkpoint_path(earlier, 20)), "update": 20, "agent_steps": wanted.agent_steps}
    assert began["init_from"] == told
    shutil.rmtree(earlier)
    finish(run, "--resume", str(run), "--max-updates", "40")
    assert events(run, "resumed")[0]["update"] == 20 and newest(run).version == 40
    assert "init_from" not in events(run, "started")[1]


def test_the_target_network_of_q_learning_begins_with_them(tmp_path):
    flags = ("dqn", "--preset", "smoke", "--minutes", "3", "--no-evaluator")
    earlier, run = tmp_path / "earlier", tmp_path / "run"
    jobs = [
        [*flags, "--run-dir", str(earlier), "--max-updates", "30"],
        [*flags, "--run-dir", str(run), "--max-updates", "2", "--seed", "2", "--init-from", f"{earlier}:30"],
    ]
    with program("single_runs.py", tmp_path, json.dumps(jobs)) as job:
        assert job.wait() == 0, job.output
    state, wanted = newest(run).worker_states[0], newest(earlier).parameters
    assert int(state["target.version"]) == 0
    assert state["target.vector"].tobytes() == wanted.tobytes() != newest(run).parameters.tobytes()


def test_a_network_of_a_user_with_other_tensors_is_refused_before_a_rank_starts(source, tmp_path):
    flags = ("--plugin", str(PLUGIN), "--network", "of-user", "--hidden-layers", "16", "--init-from", str(source))
    words = ["ppo", "--preset", "smoke", *flags, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-m", "ddrl.cli", "train", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ddrl: --init-from {checkpoint_path(source, 20)}: the checkpoint's network differs at")
    assert "this run has 'dense/kernel' [" in line and not (tmp_path / "run").exists()
