"""`ddrl bench fuzz`: what it makes of run directories, and that it sees a reader that lets something pass."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from ddrl import algorithms, cli, rundir, sealed
from ddrl import checkpoint as checkpoints
from ddrl.bench import fuzz, fuzz_flips, fuzz_readings
from ddrl.bench.fuzz_flips import CHANGED, FELL_BACK, HARMLESS, REFUSED, TRACEBACK, Flips, flip_many, table
from ddrl.builders.replay import replay_size
from ddrl.envs import make_environment
from ddrl.errors import UsageError
from ddrl.replay import storage
from ddrl.replay.replay import Replay
from ddrl.replay_files import worker_directory
from ddrl.reporting.metrics import MetricsWriter, evaluation_record
from ddrl.sampling.rollouts import empty_unroll
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)


def checkpoint_of(config, version, states):
    """A small checkpoint at an update, with states of workers."""
    parameters = np.linspace(0, 1, 50, dtype=np.float32)
    return checkpoints.Checkpoint(
        version,
        version,
        90,
        1.0 + version,
        parameters * version,
        {"m": parameters},
        version,
        (("w", (50,)),),
        worker_states=states,
        config=rundir.config_to_dict(config),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of dqn on Catch as the ranks leave it, with two checkpoints, before and after other settings."""
    path = tmp_path_factory.mktemp("fuzz") / "run"
    config = algorithms.preset("smoke", None, MACHINE, "dqn").changed(run={"run_dir": str(path)})
    rundir.create_run_dir(config)
    environment = make_environment(config.environment, num_envs=1)
    replay = Replay(**replay_size(config, environment), priority_exponent=config.replay.priority_exponent)
    shape, dtype = environment.observation_shape, environment.observation_dtype
    unroll = empty_unroll(8, config.rows, shape, dtype, environment.action_space)
    environment.close()
    for version in (5, 9):
        replay.add(unroll._replace(valid=np.ones_like(unroll.valid)))
        states = {0: replay.save(worker_directory(path, 0)) | {"version": np.int64(version)}}
        checkpoints.save(path, checkpoint_of(config, version, states))
        config = config.changed(optimizer={"learning_rate": 0.001 * version})
        rundir.update_run_dir(path, config)
    writer = MetricsWriter(path)
    for update in (3, 6, 9):
        writer.write({"kind": "train", "wall_seconds": float(update), "update": update, "online_score_mean": 0.5})
    writer.write(
        evaluation_record(
            mean=1.0,
            maximum=1.0,
            games=4,
            unfinished=0,
            version=9,
            agent_steps=90,
            wall_seconds=9.0,
            seconds=1.0,
            protocol={},
        )
    )
    writer.event("resumed", "from update 5", 5.0)
    writer.close()
    rundir.write_json(path / rundir.RESULT, {"status": "finished", "message": "", "update": 9})
    (path / rundir.LOG).write_text("a line\n")
    return path


def flipped(run, tmp_path, count, kinds=()):
    flips = Flips({"run": run}, tmp_path, 0)
    flips._files = {kind: files for kind, files in flips._files.items() if not kinds or kind.name in kinds}
    try:
        return flip_many(flips, count)
    finally:
        flips.close()


def test_no_flip_passes_and_every_kind_has_its_outcome(run, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz_flips, "CURVE_EVERY", 1000)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    done = flipped(run, tmp_path, 120)
    assert [flip for flip in done if flip.outcome in (CHANGED, TRACEBACK)] == []
    found = table(done)
    assert sum(counts["flips"] for counts in found.values()) == 120
    for kind in ("config.json", "config-N.json", "metrics.jsonl", "result.json"):
        assert found[kind][REFUSED] == found[kind]["flips"] > 0
    for kind in ("checkpoint", "replay"):
        assert found[kind][REFUSED] + found[kind][FELL_BACK] == found[kind]["flips"] and found[kind][FELL_BACK] > 0
    assert found["log.txt"][HARMLESS] == found["log.txt"]["flips"]
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    assert flipped(run, tmp_path / "again", 20) == done[:20], "a function of the seed"


def test_no_flip_in_the_best_parameters_passes(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    newest = checkpoints.load_latest(copy)
    checkpoints.save_best(copy, dataclasses.replace(newest, slots={}, worker_states={}))
    done = flipped(copy, tmp_path / "flipped", 30, {"best.npz"})
    assert [flip.outcome for flip in done] == [REFUSED] * 30
    assert {flip.file for flip in done} == {"run/checkpoints/best.npz"}


def _believing(monkeypatch, what):
    """Takes a checksum away."""
    if what == "checkpoint":
        monkeypatch.setattr(checkpoints, "_trouble", lambda data: "")
        monkeypatch.setattr("zipfile.ZipExtFile._update_crc", lambda *_: None)
    elif what == "replay":
        read = storage.read
        monkeypatch.setattr(storage, "read", lambda where, entry, arrays=None: read(where, _Any(entry), arrays))
    else:
        read = lambda data, key, right: sealed.Read(_without(json.loads(data), key), True)
        monkeypatch.setattr(sealed, "_read", read)


class _Any(dict):
    """An entry that has every checksum."""

    def __getitem__(self, name):
        return _Equal() if name == "sha256" else super().__getitem__(name)


class _Equal:
    __hash__ = None

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False


def _without(content, key):
    content.pop(key, None)
    return content


@pytest.mark.parametrize(
    ("what", "kinds", "count"),
    [
        ("checkpoint", {"checkpoint"}, 50),
        ("replay", {"replay"}, 50),
        ("json", {"metrics.jsonl", "result.json"}, 60),
        ("json", {"config.json"}, 200),
    ],
)
def test_a_reader_without_its_check_is_seen(run, tmp_path, monkeypatch, what, kinds, count):
    monkeypatch.setattr(fuzz_flips, "CURVE_EVERY", 1000)
    _believing(monkeypatch, what)
    done = flipped(run, tmp_path, count, kinds)
    assert {flip.kind for flip in done if flip.outcome in (CHANGED, TRACEBACK)} >= kinds
    assert all(flip.why for flip in done if flip.outcome in (CHANGED, TRACEBACK))


def test_an_exception_of_a_reader_is_a_traceback_and_status_1(run, tmp_path, monkeypatch, capsys):
    def broken(path):
        raise KeyError("x")

    flips = Flips({"run": run}, tmp_path, 0)
    monkeypatch.setattr(fuzz_readings, "read_counted", broken)
    done = [flips.flip() for _ in range(60)]
    flips.close()
    bad = [flip for flip in done if flip.outcome == TRACEBACK]
    assert bad and bad[0].why == "metrics: KeyError: 'x'"
    monkeypatch.setattr(fuzz, "_flips", lambda *_: done)
    assert cli.main(["bench", "fuzz", "--flips", "60"]) == 1
    said = capsys.readouterr().out
    assert (
        f"bad: kind {bad[0].kind}, file {bad[0].file}, byte {bad[0].byte}, bit {bad[0].bit}, outcome tracebacks" in said
    )
    assert "why metrics: KeyError: 'x'" in said


def test_a_run_that_is_damaged_already_is_refused(run, tmp_path):
    copy = tmp_path / "run"
    flips = Flips({"run": run}, tmp_path, 0)
    flips.close()
    (copy / rundir.RESULT).write_text("{")
    with pytest.raises(UsageError, match="cannot be read as it is: end"):
        Flips({"run": copy}, tmp_path / "other", 0)


@pytest.mark.parametrize("line", [[], ["--flips", "-1"], ["--flips", "1", "--runs"]])
def test_what_cannot_be_is_refused(line, capsys):
    try:
        status = cli.main(["bench", "fuzz", *line])
    except SystemExit as end:
        status = end.code
    assert status == 2


def test_inputs_that_hypothesis_makes_end_in_no_traceback(capsys):
    pytest.importorskip("hypothesis")
    assert cli.main(["bench", "fuzz", "--inputs", "8", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["inputs"]
    assert len(found) == 11 and all(counts["accepted"] + counts["refused"] >= 5 for counts in found.values())


def test_a_parser_that_breaks_is_seen_and_its_input_made_small():
    pytest.importorskip("hypothesis")
    from hypothesis import strategies

    from ddrl.bench.fuzz_inputs import throw_at

    counts = throw_at(strategies.integers(0, 10**6), lambda number: 1 // (number < 37), ValueError, 200, 0)
    assert counts["tracebacks"] == 1 and counts["why"].startswith("37: ZeroDivisionError")
    several = throw_at(strategies.just(0), lambda number: _raise(ValueError("a\nb")), ValueError, 5, 0)
    assert several["tracebacks"] == 1 and "a refusal of 3 letters" in several["why"]


def _raise(error):
    raise error


def test_runs_of_others_are_not_made_anew(tmp_path):
    (tmp_path / "dqn").mkdir()
    (tmp_path / "dqn" / "mine.txt").touch()
    with pytest.raises(UsageError, match="dqn was not made by this command"):
        fuzz_flips.make_runs(tmp_path, ["dqn"])
    assert (tmp_path / "dqn" / "mine.txt").exists()
