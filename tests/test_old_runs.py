"""Runs of earlier versions of ddrl go on: their directories in tests/data are as those versions left them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ddrl import rundir
from ddrl.checkpoint import load_latest
from ddrl.programs import python_command

DATA = Path(__file__).parent / "data"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name, updates", [("ppo", 48), ("dqn", 170)])
def test_a_run_of_0_1_0_is_resumed(name, updates, tmp_path):
    path = tmp_path / name
    shutil.copytree(DATA / f"run-0.1.0-{name}", path)
    before = load_latest(path)
    assert rundir.load_config(path).title == name
    command = [*python_command("ddrl.cli"), "train", "--resume", str(path), "--max-updates", str(updates)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    assert json.loads((path / rundir.RESULT).read_text())["update"] == updates
    after = load_latest(path)
    assert after.version == updates and not np.array_equal(after.parameters, before.parameters)
    hashes = (path / "parameter_hashes.txt").read_text().split("\n")
    assert sum(line.startswith(f"{before.version + 1} ") for line in hashes) == 1, "it went on where it was"
