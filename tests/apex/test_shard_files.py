"""Save and restore of a replay shard: to the bit, only what has changed, and bad files refused."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from ddrl.apex.shard_replay import ShardReplay
from ddrl.errors import UsageError
from ddrl.replay import storage
from tests.apex.segments import FEATURES, IMAGES, Player, noise
from tests.replay.test_storage import damage


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(storage, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(storage, "PIECE_BYTES", 1000)


def go_on(shard, seed, turns=12):
    """All that comes out of a shard that is filled, sampled, updated and trimmed."""
    random, out = np.random.default_rng(seed), []
    for turn in range(turns):
        shard.insert(noise(shard.format, random, actor=seed, first_step=10 * turn))
        sample = shard.sample(random, 64, 0.4)
        shard.set_priorities(sample.key, random.exponential(size=64))
        out += [*sample]
        if turn % 4 == 3:
            out.append(np.array(shard.trim()))
    return [*out, np.array(list(shard.counters().values())), shard.ages(np.linspace(0, 1, 5))]


def assert_same_future(one, other):
    for a, b in zip(go_on(one, 77), go_on(other, 77), strict=True):
        np.testing.assert_array_equal(a, b)
    one.check()
    other.check()


@pytest.mark.parametrize("exponent", (None, -0.4))
@pytest.mark.parametrize("format", (IMAGES, FEATURES))
@pytest.mark.parametrize("turns", (1, 6, 80))
def test_restored_equals_continued(tmp_path, format, exponent, turns):
    """Almost empty, half full, and after many rounds."""
    shard, restored = (ShardReplay(format, 100, eviction_exponent=exponent) for _ in range(2))
    for segment in Player(format, 2).play(40):
        shard.insert(segment)
    go_on(shard, 1, turns)
    go_on(restored, 2, 30)  # what it held is gone
    np.savez(tmp_path / "state.npz", **shard.save(tmp_path / "replay"))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as state:
        restored.load(str(tmp_path / "replay"), dict(state))
    restored.check()
    assert_same_future(shard, restored)


def test_an_empty_one_is_restored(tmp_path):
    shard, restored = ShardReplay(IMAGES, 100), ShardReplay(IMAGES, 100)
    go_on(restored, 2)
    restored.load(tmp_path, shard.save(tmp_path))
    assert restored.size == 0
    assert_same_future(shard, restored)


def test_segments_that_were_here_before_are_known_after_a_restore(tmp_path):
    shard, restored = ShardReplay(FEATURES, 100), ShardReplay(FEATURES, 100)
    segment = noise(FEATURES, np.random.default_rng(0), actor=2**40, run_id=2**62, first_step=5)
    shard.insert(segment)
    restored.load(tmp_path, shard.save(tmp_path))
    assert not restored.insert(segment)
    assert restored.insert(segment._replace(first_step=15))


def test_a_later_incarnation_keeps_the_keys_it_finds_and_gives_new_ones(tmp_path):
    """What the earlier one inserted and handed out after the save must mean nothing now."""
    earlier, later = ShardReplay(FEATURES, 50), ShardReplay(FEATURES, 50, run=1)
    go_on(earlier, 1, 20)
    later.load(tmp_path, earlier.save(tmp_path))
    drawn = earlier.sample(np.random.default_rng(0), 32)
    np.testing.assert_array_equal(later.sample(np.random.default_rng(0), 32).key, drawn.key)
    kept = set(earlier._keys[earlier._tree.weights > 0].tolist())
    lost, new = set(), set()
    for shard, keys in ((earlier, lost), (later, new)):
        for turn in range(40):
            shard.insert(noise(FEATURES, np.random.default_rng(turn), actor=5, first_step=10 * turn))
            keys |= set(shard._keys[shard._tree.weights > 0].tolist()) - kept
        shard.check()
    assert len(lost) == len(new) == 400 and not lost & new


def parts(directory):
    return {name for name in os.listdir(directory) if "rows" in name}


def test_only_changed_parts_are_written_and_the_files_stay_few(tmp_path):
    shard, random = ShardReplay(IMAGES, 1000), np.random.default_rng(0)
    for i in range(200):
        shard.insert(noise(IMAGES, random, first_step=10 * i))
    shard.save(tmp_path)
    assert len(parts(tmp_path)) == storage.SEGMENTS
    for i in range(200, 230):
        shard.insert(noise(IMAGES, random, first_step=10 * i))
        before = parts(tmp_path)
        sample = shard.sample(random, 32)
        shard.set_priorities(sample.key, random.exponential(size=32))
        shard.save(tmp_path)
        assert 1 <= len(parts(tmp_path) - before) <= 4
        assert len(os.listdir(tmp_path)) <= 2 * (storage.SEGMENTS + 1)
    before = parts(tmp_path)
    shard.trim()
    shard.save(tmp_path)
    assert parts(tmp_path) <= before, "nothing was inserted, so no part was written"
    restored = ShardReplay(IMAGES, 1000)
    restored.load(tmp_path, shard.save(tmp_path))
    assert_same_future(shard, restored)
    shard.load(tmp_path, restored.save(tmp_path))
    assert_same_future(shard, restored)


def test_the_manifest_before_the_last_stays_good(tmp_path):
    shard, restored = ShardReplay(FEATURES, 100), ShardReplay(FEATURES, 100)
    go_on(shard, 1, 20)
    oldest = shard.save(tmp_path)
    go_on(shard, 2, 5)
    older, expected = shard.save(tmp_path), shard.sample(np.random.default_rng(0), 64)
    go_on(shard, 3, 5)
    shard.save(tmp_path)
    restored.load(tmp_path, older)
    for a, b in zip(restored.sample(np.random.default_rng(0), 64), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(UsageError, match="cannot read replay file"):
        restored.load(tmp_path, oldest)


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
    shard = ShardReplay(IMAGES, 100)
    go_on(shard, 1, 20)
    manifest = shard.save(tmp_path)
    (path,) = tmp_path.glob(f"*{kind}*")
    harm(path)
    with pytest.raises(UsageError, match=f"{words}.*another checkpoint"):
        shard.load(tmp_path, manifest)
    assert shard.size == 0
    shard.check()
    assert_same_future(shard, ShardReplay(IMAGES, 100))


@pytest.mark.parametrize(
    "other, words",
    (
        ({"capacity": 99}, "capacity 100, this run has 99"),
        ({"priority_exponent": 0.0}, "priority exponent 0.6"),
        ({"eviction_exponent": -0.4}, "eviction exponent None, this run has -0.4"),
        ({"format": IMAGES}, "format"),
    ),
)
def test_another_kind_of_replay_is_refused(tmp_path, other, words):
    shard = ShardReplay(FEATURES, 100)
    go_on(shard, 1, 3)
    with pytest.raises(UsageError, match=words):
        ShardReplay(**{"format": FEATURES, "capacity": 100, **other}).load(tmp_path, shard.save(tmp_path))


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot save the replay in"):
        ShardReplay(FEATURES, 100).save(tmp_path / "file")


CRAFTED = [
    {"used": [1, 2, 3]}, {"used": ["1", 2]}, {"used": [10**12, 1]}, {"free": [10**15, 1]},
    {"free": [-1, 1]}, {"free": []},
    {"size": "9"}, {"size": 10**9}, {"counters": {}}, {"counters": 3}, {"streams": [[0, 0]]},
    {"streams": [["a", 0, 0, 0]]},
    {"random": {}}, {"random": "x"}, {"parts": []}, {"parts": "x"}, {"rest": None}, {"kind": []},
]  # fmt: skip


@pytest.mark.parametrize("crafted", CRAFTED, ids=str)
def test_a_crafted_manifest_is_refused_and_leaves_an_empty_replay(tmp_path, crafted):
    shard, other = ShardReplay(FEATURES, 100), ShardReplay(FEATURES, 100)
    for segment in Player(FEATURES, 2).play(40):
        shard.insert(segment)
    facts = json.loads(shard.save(tmp_path)["replay"].tobytes())
    with pytest.raises(UsageError, match="resume from another checkpoint|with the settings") as caught:
        other.load(tmp_path, {"replay": np.frombuffer(json.dumps(facts | crafted).encode(), np.uint8)})
    assert "\n" not in str(caught.value) and other.size == 0
    other.check()
