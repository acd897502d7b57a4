"""Run directories: which are made and taken, their locks, and files that are whole or not there."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import socket
import types

import pytest

from ddrl import run_lock, rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import EnvironmentConfig, ExchangeConfig, RunConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.launch.job import quieten
from ddrl.reporting.metrics import MetricsWriter


def test_run_directory_is_made_once(tmp_path):
    config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "a" / "run")))
    path, made = rundir.create_run_dir(config)
    assert rundir.load_config(path) == made == config
    (path / "precious").write_text("x")
    with pytest.raises(UsageError, match=r"exists, and nothing in it is overwritten.*--resume.*--run-dir"):
        rundir.create_run_dir(config)
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "lock", "precious"]


SETTINGS = '{"algorithm_name": "ba3c"}'
EVENT = '{"kind": "event", "wall_seconds": 0.0, "name": "started", "text": ""}\n'
LEFT = {
    "nothing": {},
    "its settings": {"config.json": SETTINGS, "lock": "", "log.txt": "No space left on device"},
    "no settings": {"config.json": ""},
    "hashes": {"config.json": SETTINGS, "parameter_hashes.txt": ""},
    "half its settings": {".config.json.1f.tmp": ""},
    "half its settings, by an earlier version": {"config.json.17.tmp": ""},
    "ranks that died": {
        "config.json": SETTINGS,
        "result.json": '{"status": "failed"}',
        "ranks/0": "{}",
        "ranks/11": "{}",
    },
    "a stop": {"config.json": SETTINGS, "stop": "", "trained": ""},
    "half its earlier settings": {"config.json": SETTINGS, ".config-0.json.1f.tmp": ""},
    "half a stop": {"config.json": SETTINGS, ".stop.1f.tmp": ""},
    "half a script": {".job.sbatch.1f.tmp": ""},
    "no update": {"metrics.jsonl": EVENT, "events.out.tfevents.1.vm.2.3": "x", "stacks-2.txt": "x", "stalled": ""},
}
WANTED = {
    "a checkpoint": {"config.json": SETTINGS, "checkpoints/update-000000005.npz": ""},
    "a replay": {"replay/worker-0": ""},
    "something else": {"config.json": SETTINGS, "notes.txt": ""},
    "another program's settings": {"config.json": '{"model": "mine"}', "log.txt": ""},
    "updates": {"metrics.jsonl": EVENT + '{"kind": "train", "update": 1}\n'},
    "a damaged line": {"metrics.jsonl": EVENT + "x\n"},
    "a result": {"result.json": '{"status": "finished"}'},
    "a hidden file": {".profile": ""},
}


def left_in(path, files):
    path.mkdir()
    (path / "checkpoints").mkdir()
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path, TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(path)))


@pytest.mark.parametrize("files", LEFT.values(), ids=LEFT)
def test_a_directory_in_which_nothing_was_trained_is_taken(tmp_path, files):
    path, config = left_in(tmp_path / "run", files)
    assert rundir.create_run_dir(config) == (path, config)
    assert rundir.load_config(path) == config


@pytest.mark.parametrize("files", WANTED.values(), ids=WANTED)
def test_a_directory_with_what_may_be_wanted_is_left_as_it_is(tmp_path, files):
    path, config = left_in(tmp_path / "run", files)
    with pytest.raises(UsageError, match="exists, and nothing in it is overwritten|holds other files"):
        rundir.create_run_dir(config)
    assert {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()} == files


def test_directories_that_are_made_are_not_writable_by_everybody(tmp_path):
    before = os.umask(0)
    try:
        rundir.make_run_dir(tmp_path / "runs" / "one")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "runs", tmp_path / "runs" / "one")] == [0o775] * 2


def test_earlier_settings_come_in_their_order(tmp_path):
    config = TrainConfig(algorithm=BA3CConfig())
    for number in (0, 2, 10):
        of_part = config.changed(run={"seed": number})
        rundir.write_json(tmp_path / f"config-{number}.json", rundir.config_to_dict(of_part))
    assert [part.run.seed for _, part in rundir.earlier_configs(tmp_path)] == [0, 2, 10]


def test_a_directory_that_is_being_trained_is_not_taken(tmp_path):
    path, config = left_in(tmp_path / "run", {"config.json": SETTINGS})
    with run_lock.locked(path), pytest.raises(UsageError, match="is being trained by another process"):
        rundir.create_run_dir(config)
    assert (path / "config.json").read_text() == SETTINGS


def test_only_who_works_in_a_directory_holds_its_lock(tmp_path):
    assert not run_lock.is_held(tmp_path) and run_lock.holder(tmp_path) == ""
    with run_lock.locked(tmp_path):
        assert run_lock.is_held(tmp_path)
        assert run_lock.holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
    with (tmp_path / run_lock.LOCK).open("rb") as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)
        assert not run_lock.is_held(tmp_path), "another process looks, too"


@pytest.mark.parametrize(
    "held, restarts, taken, told",
    [
        (0.2, "", True, 0),
        (2.0, "", False, 0),
        (2.0, "0", False, 0),
        (0.2, "1", True, 0),
        (90.0, "1", True, 1),
        (200.0, "2", False, 1),
    ],
)
def test_a_lock_that_is_held_is_tried_again(tmp_path, monkeypatch, capsys, held, restarts, taken, told):
    """Whoever looks at the state of a run holds it for a moment, and a lost node may seem to hold it for longer."""
    pauses = []
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    monkeypatch.setattr(run_lock, "STARTED", 0.0)
    with (tmp_path / run_lock.LOCK).open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def sleep(seconds):
            pauses.append(seconds)
            if sum(pauses) >= held:
                other.close()

        monkeypatch.setattr(run_lock, "time", types.SimpleNamespace(monotonic=lambda: sum(pauses), sleep=sleep))
        refused = pytest.raises(UsageError, match="is being trained by another process")
        with contextlib.nullcontext() if taken else refused, run_lock.locked(tmp_path):
            pass
    assert capsys.readouterr().err.count("this requeued job waits up to 1") == told


def test_a_requeued_job_waits_once_for_all_locks(tmp_path, monkeypatch, capsys):
    """That of a study and those of its points, or of a search and a trial, are lost with the same node."""
    pauses = []
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(run_lock, "STARTED", 0.0)
    clock = types.SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(run_lock, "time", clock)
    with (tmp_path / run_lock.LOCK).open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for _ in range(2):
            with pytest.raises(UsageError, match="is being trained by another process"), run_lock.locked(tmp_path):
                pass
    assert sum(pauses) < run_lock.REQUEUED_SECONDS + 2.0
    assert capsys.readouterr().err.count("this requeued job waits up to") == 1


@pytest.mark.parametrize(
    "name, why",
    [
        ("~/run", "the shell did not expand ~"),
        ("a\nb", "control characters"),
        ("a\x1b[31m", "control characters"),
        ("/dev/null", "cannot make run directory /dev/null: it is not a directory"),
        ("/dev/null/x", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_names_that_are_no_run_directories(tmp_path, monkeypatch, name, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why) as refused:
        rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=name)))
    assert "\n" not in str(refused.value) and list(tmp_path.iterdir()) == []


def test_run_directory_under_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another --run-dir"):
        rundir.create_run_dir(
            TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "file" / "run")))
        )


def test_a_json_file_that_cannot_be_written_leaves_no_part_behind(tmp_path):
    (tmp_path / "result.json").mkdir()
    with pytest.raises(OSError):
        rundir.write_json(tmp_path / "result.json", {"status": "finished"})
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_json_file_is_on_the_disk_before_it_takes_the_place_of_another(tmp_path, monkeypatch):
    """Else a node that goes down leaves an empty one, and with config.json a run that cannot be resumed."""
    calls = []
    for name in ("fsync", "replace"):
        do = getattr(os, name)
        monkeypatch.setattr(rundir.os, name, lambda *words, name=name, do=do: (calls.append(name), do(*words)))
    before = os.umask(0)
    try:
        rundir.write_json(tmp_path / "result.json", {"status": "finished"})
    finally:
        os.umask(before)
    assert calls == ["fsync", "replace"] and rundir.read_json(tmp_path / "result.json") == {"status": "finished"}
    assert (tmp_path / "result.json").stat().st_mode & 0o022 == 0


def test_a_pipe_in_the_place_of_metrics_is_not_waited_for(tmp_path):
    path, config = left_in(tmp_path / "run", {"config.json": SETTINGS})
    os.mkfifo(path / "metrics.jsonl")
    with pytest.raises(OSError, match="no regular file"):
        rundir.create_run_dir(config)


def test_two_hosts_write_one_file_at_once(tmp_path, monkeypatch):
    """Their processes may have the same number, so neither may take the other's temporary file for its own."""
    path, fsync = tmp_path / "result.json", os.fsync

    def meanwhile(descriptor):
        monkeypatch.setattr(os, "fsync", fsync)
        rundir.write_json(path, {"of": "the other"})
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    rundir.write_json(path, {"of": "this one"})
    assert rundir.read_json(path) == {"of": "this one"} and list(tmp_path.iterdir()) == [path]


def test_links_in_a_run_of_somebody_else_are_not_followed(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0")
    (tmp_path / ".result.json.0.tmp").symlink_to(outside)
    rundir.write_json(tmp_path / "result.json", {"status": "finished"})
    (tmp_path / rundir.METRICS).symlink_to(outside)
    with pytest.raises(UsageError, match="cannot write metrics in .*: it is a link, which is not followed"):
        MetricsWriter(tmp_path)
    (tmp_path / rundir.LOG).symlink_to(outside)
    with pytest.raises(OSError, match="it is a link, which is not followed"):
        quieten(tmp_path)
    (tmp_path / run_lock.LOCK).symlink_to(outside)
    with pytest.raises(UsageError, match="lock: it is a link, which is not followed"), run_lock.locked(tmp_path):
        pass
    assert outside.read_text() == "mine" and not (tmp_path / "result.json").is_symlink()


def test_default_run_directory_names_the_game(monkeypatch):
    name = rundir.default_run_dir(
        TrainConfig(algorithm=BA3CConfig(), environment=EnvironmentConfig(game="ddrl/Catch-v0"))
    )
    assert name.startswith("runs/ba3c-ddrl-catch-v0-2")


def test_runs_without_a_name_that_begin_in_the_same_second_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(rundir, "default_run_dir", lambda config: str(tmp_path / "runs" / "ppo-pong-1"))
    made = [rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig())) for _ in range(3)]
    assert [path.name for path, _ in made] == ["ppo-pong-1", "ppo-pong-1-2", "ppo-pong-1-3"]
    assert all(rundir.load_config(path) == config and config.run.run_dir == str(path) for path, config in made)


def test_a_default_directory_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    (tmp_path / "runs").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(rundir, "default_run_dir", lambda config: str(tmp_path / "runs" / "ppo-pong-1"))
    with pytest.raises(UsageError, match="cannot make run directory"):
        rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig()))


def test_a_resumed_config_keeps_the_one_before(tmp_path):
    path, first = rundir.create_run_dir(
        TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run")))
    )
    rundir.update_run_dir(path, first)
    assert list(path.glob("config-*")) == []
    second = dataclasses.replace(first, exchange=ExchangeConfig(workers=1))
    rundir.update_run_dir(path, second)
    assert rundir.load_config(path) == second
    assert rundir.config_from_dict(rundir.read_json(path / "config-0.json")) == first


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(UsageError, match="does not exist, so it is not a run"):
        rundir.load_config(tmp_path / "none")
    with pytest.raises(UsageError, match="is empty, so it is not a run"):
        rundir.load_config(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="holds no config.json, so it is not a run"):
        rundir.load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        rundir.load_config(tmp_path)


def test_settings_of_earlier_resumes_are_never_overwritten(tmp_path):
    path, config = rundir.create_run_dir(
        TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run")))
    )
    for seed in (5, 6, 7):
        rundir.update_run_dir(path, dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed)))
    (path / "config-0.json").unlink()
    rundir.update_run_dir(path, config)
    kept = {name: earlier.run.seed for name, earlier in rundir.earlier_configs(path)}
    assert kept == {"config-1.json": 5, "config-2.json": 6, "config-3.json": 7}
