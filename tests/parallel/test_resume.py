"""Resume equals uninterrupted, to the bit, where the schedule is a function of the seed."""

from __future__ import annotations

import json

import pytest

from ddrl import checkpoint
from tests.parallel.support import EXACT, copy_run, differences, events, finish, needs_mpirun, newest, program, result

SINGLE = ("--workers", "1", "--parameter-servers", "0")
PONG = (
    "ba3c", "--preset", "smoke", "--minutes", "0", "--game", "pong", "--network", "a3c", "--schedule", "synchronized",
    "--groups", "1", "--simulators", "4", "--batch-size", "32", "--checkpoint-every-updates", "3",
    "--max-updates", "6", "--no-evaluator", "--reset-at-checkpoint",
)  # fmt: skip
"""Native Atari, whose state cannot be saved."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(a run of 40 updates, one of 20 that is still to be resumed)."""
    directory = tmp_path_factory.mktemp("resume")
    finish(directory / "whole", *EXACT)
    finish(directory / "half", *EXACT, "--max-updates", "20")
    return directory / "whole", directory / "half"


@needs_mpirun
@pytest.mark.timeout(300)
def test_resumed_equals_uninterrupted_to_the_bit(runs, tmp_path):
    whole, half = runs
    assert newest(half).version == 20 and newest(whole).version == 40
    passed = checkpoint.load(checkpoint.checkpoint_path(whole, 20))
    assert list(differences(newest(half), passed)) == []
    resumed = copy_run(half, tmp_path / "run")
    finish(resumed, "--resume", str(resumed), "--max-updates", "40")
    assert list(differences(newest(resumed), newest(whole))) == []
    assert events(resumed, "resumed")[0]["update"] == 20
    assert newest(resumed).agent_steps == newest(whole).agent_steps


@needs_mpirun
@pytest.mark.timeout(300)
def test_from_before_a_damaged_checkpoint_on_another_number_of_servers_to_the_bit(runs, tmp_path):
    run = copy_run(runs[0], tmp_path / "run")
    path = checkpoint.list_checkpoints(run)[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    job = finish(run, "--resume", str(run), "--max-updates", "40", "--parameter-servers", "2")
    console = " ".join(job.output.split("\n---")[0].split())  # sentences of the summary are wrapped
    said = f"checkpoint left out: checkpoint {path} is damaged"
    assert console.count(said) == 2, "when it happens, and in the summary"
    assert events(run, "resumed")[0]["update"] == 20
    assert list(differences(newest(run), newest(runs[0]))) == []


@needs_mpirun
@pytest.mark.timeout(300)
def test_all_reduce_equals_a_parameter_server_and_resumes_to_the_bit(runs, tmp_path):
    run = tmp_path / "run"
    finish(run, *EXACT, "--exchange", "allreduce", "--max-updates", "20")
    assert list(differences(newest(run), newest(runs[1]))) == []
    finish(run, "--resume", str(run), "--max-updates", "40")
    assert events(run, "resumed")[0]["update"] == 20
    assert list(differences(newest(run), newest(runs[0]))) == []
    assert newest(run).agent_steps == newest(runs[0]).agent_steps


@needs_mpirun
@pytest.mark.timeout(300)
def test_another_number_of_workers_goes_on(runs, tmp_path):
    resumed = copy_run(runs[1], tmp_path / "run")
    finish(resumed, "--resume", str(resumed), "--max-updates", "40", *SINGLE)
    assert newest(resumed).version == 40 and result(resumed)["status"] == "finished"
    assert set(newest(resumed).worker_states) == {0}


@needs_mpirun
@pytest.mark.timeout(300)
def test_foreign_checkpoints_are_refused_in_one_line(runs, tmp_path):
    run = copy_run(runs[1], tmp_path / "run")
    for path in checkpoint.list_checkpoints(run):
        path.write_bytes(b"not ours")
    job = finish(run, "--resume", str(run), "--max-updates", "40", *SINGLE, status=2)
    said = job.output.split("\n---")[0].splitlines()
    assert len([line for line in said if line.startswith("ddrl: ")]) == 1
    assert "the only checkpoint is not sound in" in job.output
    assert [path.read_bytes() for path in checkpoint.list_checkpoints(run)] == [b"not ours"]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Runs of a single process, all in one, since TensorFlow takes longer to load than they take."""
    directory = tmp_path_factory.mktemp("single")
    jobs = []
    for name, flags in {"catch": EXACT, "pong": PONG}.items():
        updates = int(flags[flags.index("--max-updates") + 1])
        half = str(directory / f"{name}-half")
        jobs.append([*flags, *SINGLE, "--run-dir", str(directory / f"{name}-whole")])
        jobs.append([*flags, *SINGLE, "--run-dir", half, "--max-updates", str(updates // 2)])
        jobs.append(["--resume", half, "--max-updates", str(updates)])
    with program("single_runs.py", directory, json.dumps(jobs)) as job:
        assert job.wait() == 0, job.output
    return directory


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, half", [("catch", 20), ("pong", 3)])
def test_single_process_resumes_to_the_bit(single, name, half):
    whole, resumed = single / f"{name}-whole", single / f"{name}-half"
    assert events(resumed, "resumed")[0]["update"] == half and newest(resumed).version == 2 * half
    assert list(differences(newest(resumed), newest(whole))) == []
    before = checkpoint.load(checkpoint.checkpoint_path(resumed, half))
    assert list(differences(before, checkpoint.load(checkpoint.checkpoint_path(whole, half)))) == []
    assert (before.parameters != newest(whole).parameters).any()
