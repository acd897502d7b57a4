"""Checkpoints and the files of the replays that they name."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl import algorithms, rundir
from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint
from ddrl.errors import UsageError
from ddrl.kept_checkpoints import KeptCheckpoints
from ddrl.launch.restarts import seconds_trained
from ddrl.replay import storage
from ddrl.replay_files import check_replays, shard_directory, worker_directory
from ddrl.roles.resume import newest_start
from ddrl.types import Machine
from tests.replay.simulators import Simulators
from tests.replay.test_storage import make

SIZE = 3


@pytest.fixture
def run(tmp_path):
    """A run directory with checkpoints 1, 2 and 3 of a worker's replay, each with files of its own."""
    simulators = Simulators(3, 1)
    replay = make(simulators)
    directory = worker_directory(tmp_path, 0)
    for version in (1, 2, 3):
        replay.add(simulators.unroll(64))
        manifest = replay.save(directory, lambda: names_in(tmp_path, directory))
        save(tmp_path, version, {0: manifest, 1: {"draws": np.arange(2)}})
    return tmp_path


def save(run_dir, version, states, config=None, keep=3):
    parameters, settings = np.full(SIZE, version, np.float32), rundir.config_to_dict(config) if config else {}
    whole = Checkpoint(
        version,
        version,
        0,
        60.0 * version,
        parameters,
        {},
        version,
        (("x", (SIZE,)),),
        worker_states=states,
        config=settings,
    )
    KeptCheckpoints(run_dir).save(whole, keep)


def names_in(run_dir, directory):
    return KeptCheckpoints(run_dir).names_in(directory)


def latest(run_dir):
    return checkpoints.load_latest(run_dir, lambda checkpoint: check_replays(run_dir, checkpoint))


def files_of(run_dir, version):
    """Paths of the replay's files that a checkpoint names."""
    manifest = checkpoints.load(checkpoints.checkpoint_path(run_dir, version)).worker_states[0]["replay"]
    return [worker_directory(run_dir, 0) / entry["name"] for entry in storage.entries_in(manifest)]


def test_every_checkpoint_that_is_kept_has_its_replay(run):
    directory = worker_directory(run, 0)
    expected = {path.name for version in (1, 2, 3) for path in files_of(run, version)}
    assert names_in(run, directory) == expected == {path.name for path in directory.iterdir()}
    for path in checkpoints.list_checkpoints(run):
        check_replays(run, checkpoints.load(path))
    assert names_in(run, shard_directory(run, 0)) == set()


def test_nothing_is_known_of_a_checkpoint_that_cannot_be_read(run):
    path = checkpoints.checkpoint_path(run, 2)
    path.write_bytes(path.read_bytes()[:-1])
    assert names_in(run, worker_directory(run, 0)) is None


@pytest.mark.parametrize("harm", ["flipped", "shorter", "missing"])
def test_where_a_replay_is_damaged_the_checkpoint_before_is_taken_and_named(run, harm, capsys):
    assert latest(run).version == 3
    path = next(path for path in files_of(run, 3) if path not in files_of(run, 2))
    data = path.read_bytes()
    path.unlink()
    if harm != "missing":
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:] if harm == "flipped" else data[:-1])
    assert latest(run).version == 2
    warning = capsys.readouterr().err
    assert warning.startswith(f"ddrl: warning: checkpoint {checkpoints.checkpoint_path(run, 3)}: ")
    assert str(path) in warning and warning.count("\n") == 1 and "trying the next older one" in warning


def kept(run_dir):
    return [checkpoints.version_of(path) for path in checkpoints.list_checkpoints(run_dir)]


@pytest.mark.parametrize("harm", ["shorter", "missing"])
def test_a_checkpoint_without_its_replay_is_not_counted_among_those_that_are_kept(run, harm):
    """Else the last one from which the run can go on would be removed for it."""
    path = next(path for path in files_of(run, 3) if path not in files_of(run, 2))
    path.write_bytes(path.read_bytes()[:-1]) if harm == "shorter" else path.unlink()
    whole, lacking = (checkpoints.load(checkpoints.checkpoint_path(run, version)).worker_states for version in (2, 3))
    save(run, 4, whole, keep=2)
    assert kept(run) == [2, 3, 4]
    save(run, 5, lacking, keep=1)
    assert kept(run) == [4, 5] and latest(run).version == 4, "not even what was just saved counts"
    save(run, 6, {0: {}}, keep=1)
    assert kept(run) == [6]


def test_without_a_sound_replay_there_is_no_checkpoint(run):
    for path in worker_directory(run, 0).iterdir():
        path.unlink()
    with pytest.raises(UsageError, match="none of the 3 checkpoints is sound in"):
        latest(run)


@pytest.mark.parametrize(
    "algorithm, key, directory", [("apex-dqn", "shard0", shard_directory), ("dqn", "replay", worker_directory)]
)
def test_without_a_sound_replay_a_run_of_apex_goes_on_and_others_are_refused(tmp_path, algorithm, key, directory):
    """Its shards then say that they begin empty."""
    config = algorithms.preset("smoke", None, Machine(2, 1 << 34), algorithm).changed(run={"run_dir": str(tmp_path)})
    simulators = Simulators(3, 1)
    replay = make(simulators)
    replay.add(simulators.unroll(10))
    save(tmp_path, 1, {0: {key: replay.save(directory(tmp_path, 0))["replay"]}}, config)
    assert newest_start(tmp_path, config).checkpoint.version == 1
    next(directory(tmp_path, 0).iterdir()).unlink()
    if algorithm == "dqn":
        with pytest.raises(UsageError, match="the only checkpoint is not sound in"):
            newest_start(tmp_path, config)
    else:
        start = newest_start(tmp_path, config)
        assert (start.checkpoint.version, start.notes) == (1, ())


@pytest.mark.parametrize("algorithm", ["dqn", "apex-dqn"])
def test_a_run_has_spent_the_minutes_of_the_checkpoint_from_which_it_resumes(run, algorithm):
    """With those of a newer one, whose replay is missing, it would end before its minutes are used up."""
    config = algorithms.preset("smoke", None, Machine(4, 1 << 36), algorithm)
    assert seconds_trained(run, config) == 180.0
    next(path for path in files_of(run, 3) if path not in files_of(run, 2)).unlink()
    assert seconds_trained(run, config) == 120.0
    if algorithm == "apex-dqn":
        for path in worker_directory(run, 0).iterdir():
            path.unlink()
        assert seconds_trained(run, config) == 180.0, "its shards begin empty"


def test_replays_of_shards_are_those_of_their_own_directories(tmp_path):
    simulators = Simulators(3, 1)
    replay = make(simulators)
    replay.add(simulators.unroll(10))
    manifest = replay.save(shard_directory(tmp_path, 1))["replay"]
    save(tmp_path, 1, {0: {"shard1": manifest}})
    assert names_in(tmp_path, shard_directory(tmp_path, 1)) == {e["name"] for e in storage.entries_in(manifest)}
    assert names_in(tmp_path, shard_directory(tmp_path, 0)) == set()
    check_replays(tmp_path, latest(tmp_path))
    next(shard_directory(tmp_path, 1).iterdir()).unlink()
    with pytest.raises(UsageError, match="the only checkpoint is not sound in"):
        latest(tmp_path)
