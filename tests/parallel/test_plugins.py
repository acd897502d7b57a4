"""A user's plugin in whole jobs: every process of a run has it, and a rank that has not says so."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddrl import rundir
from tests.parallel.light import EVERYWHERE
from tests.parallel.support import events, finish, forked_light_train, lines, needs_mpirun, newest, result

pytestmark = [pytest.mark.timeout(240), needs_mpirun]

FILE = Path(__file__).parents[1] / "of_users" / "reinforce.py"
TWO = ("--workers", "2", "--exchange", "circle", "--network", "of-user", "--hidden-layers", "16")


def test_an_algorithm_a_network_and_an_exchange_of_a_user_train_and_go_on(tmp_path):
    run, plugin = tmp_path / "run", Path(shutil.copy(FILE, tmp_path))
    budget = ("--minutes", "0", "--eval-every-updates", "10")
    finish(run, "reinforce", "--plugin", str(plugin), "--preset", "smoke", *TWO, *budget, "--max-updates", "20")
    assert any("baseline_loss" in line for line in lines(run)) and result(run)["status"] == "finished"
    plugin.write_text(plugin.read_text() + "# mended\n")
    finish(run, "--resume", str(run), "--max-updates", "30", "--baseline-cost", "0.25")
    assert newest(run).version == 30 and rundir.load_config(run).algorithm.baseline_cost == 0.25
    assert [name for name, _ in newest(run).layout][:2] == ["dense/kernel", "dense/bias"]
    contents = [event["plugins"][str(plugin)] for event in events(run, "started")]
    assert contents[1] == hashlib.sha256(plugin.read_bytes()).hexdigest() != contents[0]
    (changed,) = events(run, "plugin_changed")
    assert changed["text"].startswith(f"{plugin}: changed since the last start")


def test_every_process_of_a_run_imports_its_plugins(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    job = ("apex-dqn", "--preset", "smoke", "--actors", "1", "--simulator-processes", "1", "--max-updates", "5")
    flags = (*job, "--minutes", "0", "--plugin", str(FILE))
    finish(tmp_path / "run", *flags, start=forked_light_train, environment=EVERYWHERE | {"PLUGIN_MARKS": str(marks)})
    programs = [path.name.rpartition("-")[0] for path in marks.iterdir()]
    assert {"ddrl.apex.acting", "ddrl.envs.simulator_process"} < set(programs)
    ranks = [name for name in programs if "ranks" in name]
    assert len(ranks) == 4, f"learner, actor, shard and evaluator: {programs}"


def test_a_rank_that_cannot_import_a_plugin_says_so_in_one_line(tmp_path):
    flags = ("ba3c", "--preset", "smoke", "--plugin", str(FILE), "--workers", "2")
    job = finish(
        tmp_path / "run",
        *flags,
        status=2,
        start=forked_light_train,
        environment={"PLUGIN_FAILS": "1", "TEST_NO_ULFM": "1"},
    )
    line = FILE.read_text().splitlines().index('    raise OSError("no such device")') + 1
    cause = f"plugin {FILE} cannot be imported: OSError: no such device (reinforce.py, line {line})"
    told = job.output.partition("\n--- log.txt")[0]
    assert f"ddrl: rank 1 on {socket.gethostname()}: {cause}" in told.splitlines(), job.output


def test_a_network_with_other_outputs_is_refused_before_a_rank_starts(tmp_path):
    flags = ("ppo", "--preset", "smoke", "--plugin", str(FILE), "--network", "too-wide", "--run-dir", tmp_path / "run")
    done = subprocess.run([sys.executable, "-m", "ddrl.cli", "train", *flags], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "network too-wide: its outputs are policy [B, 4] and value [B, 1], and must be policy [B, 3] and" in line
    assert not (tmp_path / "run").exists()
