"""Save and restore: to the bit, only what has changed, and bad files refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.files import temporary_path
from ddrl.replay import storage
from ddrl.replay.replay import Replay
from tests.replay.simulators import Simulators


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(storage, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(storage, "PIECE_BYTES", 100)


def make(simulators, capacity=96, exponent=0.6, n_step=3):
    return Replay(
        capacity,
        simulators.simulators,
        simulators.observation_shape,
        simulators.dtype,
        stack=simulators.stack,
        n_step=n_step,
        priority_exponent=exponent,
    )


def go_on(replay, unrolls, random):
    """Samples, updates and additions; everything that came out."""
    out = []
    for unroll in unrolls:
        sample = replay.sample(random, 16, 0.4)
        replay.set_priorities(sample.key, random.exponential(size=16))
        out.append(sample)
        replay.add(unroll)
    out.append(replay.sample(random, 64, 0.4))
    return out


def assert_same_future(one, other, simulators):
    unrolls = [simulators.unroll(steps) for steps in (3, 1, 20, 4)]
    for mine, others in zip(*(go_on(r, unrolls, np.random.default_rng(9)) for r in (one, other)), strict=True):
        for name, a, b in zip(mine._fields, mine, others, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)
    assert (one.size, one.ignored) == (other.size, other.ignored)
    one.check()
    other.check()


@pytest.mark.parametrize("steps", (1, 2, 9, 40, 150))
@pytest.mark.parametrize("exponent", (0.0, 0.6))
def test_restored_equals_continued(tmp_path, steps, exponent):
    """Almost empty, half full and after several rounds; the newest transitions still wait for later steps."""
    simulators = Simulators(3, 4, seed=steps)
    replay = make(simulators, exponent=exponent)
    replay.add(simulators.unroll(4))
    replay.add(simulators.unroll(steps))
    if replay.size:
        go_on(replay, [simulators.unroll(2)], np.random.default_rng(1))
    manifest = replay.save(tmp_path)
    restored = make(simulators, exponent=exponent)
    restored.add(Simulators(3, 4, seed=99).unroll(60))  # what it held is gone
    restored.load(tmp_path, manifest)
    assert_same_future(replay, restored, simulators)


def test_an_empty_one_is_restored(tmp_path):
    simulators = Simulators(3, 4)
    replay, restored = make(simulators), make(simulators)
    restored.load(tmp_path, replay.save(tmp_path))
    assert restored.size == 0
    unroll = simulators.unroll(20)
    replay.add(unroll)
    restored.add(unroll)
    assert_same_future(replay, restored, simulators)


def test_a_manifest_survives_a_checkpoint(tmp_path):
    """It is arrays of numbers, which an npz without pickle holds."""
    simulators = Simulators(3, 4)
    replay, restored = make(simulators), make(simulators)
    replay.add(simulators.unroll(20))
    np.savez(tmp_path / "state.npz", **replay.save(tmp_path / "replay"))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as state:
        restored.load(str(tmp_path / "replay"), dict(state))
    assert_same_future(replay, restored, simulators)


def rows_files(directory: Path) -> set[str]:
    return {name for name in os.listdir(directory) if "rows" in name}


@pytest.mark.parametrize("cut_off", (False, True))
def test_only_changed_segments_are_written_and_the_files_stay_few(tmp_path, cut_off):
    simulators = Simulators(3, 4)
    replay = make(simulators)
    replay.add(simulators.unroll(200))
    replay.save(tmp_path)
    first = rows_files(tmp_path)
    assert 10 <= len(first) <= storage.SEGMENTS
    for _ in range(60):
        if cut_off:
            simulators.reset()  # the row before the open one changes, too
        replay.add(simulators.unroll(1))
        before = rows_files(tmp_path)
        manifest = replay.save(tmp_path)
        assert 1 <= len(rows_files(tmp_path) - before) <= (4 if cut_off else 2)
        assert len(os.listdir(tmp_path)) <= 2 * (storage.SEGMENTS + 1)
    assert not rows_files(tmp_path) & first
    before = rows_files(tmp_path)
    manifest = replay.save(tmp_path)
    assert rows_files(tmp_path) <= before, "nothing was added, so no rows were written"
    restored = make(simulators)
    restored.load(tmp_path, manifest)
    assert_same_future(replay, restored, simulators)


def test_the_manifest_before_the_last_stays_good(tmp_path):
    simulators = Simulators(3, 4)
    replay = make(simulators)
    replay.add(simulators.unroll(50))
    oldest = replay.save(tmp_path)
    replay.add(simulators.unroll(20))
    older, expected = replay.save(tmp_path), replay.sample(np.random.default_rng(0), 64)
    temporary_path(tmp_path / "replay-000009-weights.bin").write_bytes(b"left by a save that was killed")
    (tmp_path / "notes.txt").write_text("not ours")
    replay.add(simulators.unroll(60))
    replay.save(tmp_path)
    restored = make(simulators)
    restored.load(tmp_path, older)
    np.testing.assert_array_equal(restored.sample(np.random.default_rng(0), 64).observation, expected.observation)
    with pytest.raises(UsageError, match="cannot read replay file .*000001.*No such file"):
        restored.load(tmp_path, oldest)
    assert sorted(name for name in os.listdir(tmp_path) if name[0] != "r") == ["notes.txt"]


def test_files_that_a_checkpoint_names_stay_however_many_saves_follow(tmp_path):
    """Saves whose checkpoints could not be written take nothing away from an older one that could."""
    simulators = Simulators(3, 4)
    replay = make(simulators)
    replay.add(simulators.unroll(50))
    good, expected = replay.save(tmp_path), replay.sample(np.random.default_rng(0), 64)
    named = {entry["name"] for entry in storage.entries_in(good["replay"])}
    assert named == set(os.listdir(tmp_path))
    for _ in range(4):
        replay.add(simulators.unroll(50))
        replay.save(tmp_path, lambda: named)
    restored = make(simulators)
    restored.load(tmp_path, good)
    np.testing.assert_array_equal(restored.sample(np.random.default_rng(0), 64).observation, expected.observation)
    replay.save(tmp_path)
    assert not named & set(os.listdir(tmp_path)), "what nobody names is cleaned away"


def test_where_it_is_not_known_what_checkpoints_name_every_file_stays(tmp_path):
    simulators = Simulators(3, 4)
    replay, files = make(simulators), set()
    for _ in range(4):
        replay.add(simulators.unroll(50))
        replay.save(tmp_path, lambda: None)
        assert files < set(os.listdir(tmp_path))
        files = set(os.listdir(tmp_path))


def test_a_run_that_went_back_to_an_older_checkpoint_overwrites_nothing(tmp_path):
    simulators = Simulators(3, 4)
    replay = make(simulators)
    replay.add(simulators.unroll(50))
    older = replay.save(tmp_path)
    replay.add(simulators.unroll(5))
    newer = replay.save(tmp_path)
    back = make(simulators)
    back.load(tmp_path, older)
    back.add(simulators.unroll(5))
    names = set(os.listdir(tmp_path))
    back.save(tmp_path)
    assert not {n for n in os.listdir(tmp_path) if n in names} - names
    back.load(tmp_path, older)
    with pytest.raises(UsageError, match="cannot read replay file"):
        back.load(tmp_path, newer)  # the abandoned future was cleaned away


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ("rows-00", "weights"))
@pytest.mark.parametrize(
    "harm, words",
    (
        (damage, "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, not"),
        (lambda path: path.unlink(), "cannot read"),
    ),
)
def test_bad_files_are_refused_and_leave_an_empty_replay(tmp_path, kind, harm, words):
    simulators = Simulators(3, 4)
    replay = make(simulators)
    replay.add(simulators.unroll(50))
    manifest = replay.save(tmp_path)
    (path,) = tmp_path.glob(f"*{kind}*")
    harm(path)
    with pytest.raises(UsageError, match=f"{words}.*another checkpoint"):
        replay.load(tmp_path, manifest)
    assert replay.size == 0
    replay.check()
    replay.add(simulators.unroll(30))
    assert replay.size and replay.save(tmp_path)


@pytest.mark.parametrize(
    "other, words",
    (
        ({"capacity": 99}, "capacity 96, this run has 99"),
        ({"n_step": 1}, "n step 3"),
        ({"exponent": 0.0}, "priority exponent 0.6"),
    ),
)
def test_another_kind_of_replay_is_refused(tmp_path, other, words):
    simulators = Simulators(3, 4)
    replay = make(simulators)
    replay.add(simulators.unroll(50))
    with pytest.raises(UsageError, match=words):
        make(simulators, **other).load(tmp_path, replay.save(tmp_path))


def test_a_save_that_fails_leaves_the_last_one_good(tmp_path, monkeypatch):
    simulators = Simulators(3, 4)
    replay = make(simulators)
    replay.add(simulators.unroll(50))
    manifest = replay.save(tmp_path)
    expected = replay.sample(np.random.default_rng(0), 64)
    replay.add(simulators.unroll(40))
    before, calls = set(os.listdir(tmp_path)), []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device; make room"):
        replay.save(tmp_path)
    assert set(os.listdir(tmp_path)) == before, "what was written would take the room of later saves"
    restored = make(simulators)
    restored.load(tmp_path, manifest)
    np.testing.assert_array_equal(restored.sample(np.random.default_rng(0), 64).observation, expected.observation)
    monkeypatch.undo()
    manifest = replay.save(tmp_path)
    restored.load(tmp_path, manifest)
    assert_same_future(replay, restored, simulators)


CRAFTED = [
    {"head": "5"}, {"head": 5.5}, {"head": -3}, {"head": 10**30}, {"size": -1}, {"size": 10**6}, {"ignored": None},
    {"largest": "1"}, {"largest": float("nan")}, {"waiting": 10**12}, {"waiting": "2"}, {"waiting": -1}, {"kind": []},
    {"segments": "x"}, {"segments": [{}]}, {"segments": [[]]}, {"segments": []}, {"weights": None}, {"weights": {}},
]  # fmt: skip


@pytest.mark.parametrize("crafted", CRAFTED, ids=str)
def test_a_crafted_manifest_is_refused_and_leaves_an_empty_replay(tmp_path, crafted):
    simulators = Simulators(3, 4, seed=1)
    replay, other = make(simulators), make(simulators)
    replay.add(simulators.unroll(40))
    facts = json.loads(replay.save(tmp_path)["replay"].tobytes())
    with pytest.raises(UsageError, match="resume from another checkpoint|with the settings") as caught:
        other.load(tmp_path, {"replay": np.frombuffer(json.dumps(facts | crafted).encode(), np.uint8)})
    assert "\n" not in str(caught.value) and other.size == 0
    other.check()


@pytest.mark.parametrize(
    "change", [{"name": "../../etc/passwd"}, {"name": 3}, {"bytes": "9"}, {"bytes": -1}, {"start": "0"}]
)
def test_an_entry_of_no_file_of_ours_is_refused(tmp_path, change):
    simulators = Simulators(3, 4, seed=1)
    replay = make(simulators)
    replay.add(simulators.unroll(40))
    facts = json.loads(replay.save(tmp_path)["replay"].tobytes())
    facts["segments"][0] |= change
    for manifest in (json.dumps(facts).encode(), b"[" * 99999, b"\xff", b"{}", b"[]"):
        with pytest.raises(UsageError, match="the manifest of a replay is malformed"):
            storage.entries_in(np.frombuffer(manifest, np.uint8))


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    entry = storage.write(tmp_path, "replay-000001-weights.bin", [np.arange(9)])
    path = tmp_path / entry["name"]
    path.unlink()
    {"pipe": os.mkfifo, "directory": os.mkdir, "device": lambda path: path.symlink_to("/dev/zero")}[kind](path)
    with pytest.raises(UsageError, match="it is no regular file.*; resume from another checkpoint"):
        storage.read(tmp_path, entry)


def test_a_run_directory_that_is_gone_is_not_made_anew(tmp_path):
    """Where a file system is no longer mounted, the gigabytes of a replay would fill the disk behind it."""
    simulators = Simulators(3, 4, seed=1)
    replay = make(simulators)
    replay.add(simulators.unroll(40))
    with pytest.raises(UsageError, match="cannot save the replay in .*: No such file or directory"):
        replay.save(tmp_path / "run" / "replay" / "worker-0")
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    replay.save(tmp_path / "run" / "replay" / "worker-0")
