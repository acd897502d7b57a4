"""A replay shard against a dictionary of transitions; limits, order of eviction, keys, duplicates, statistics."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.apex.segment import SegmentFormat
from ddrl.apex.shard_replay import ShardReplay
from ddrl.errors import UsageError
from ddrl.replay.replay import PRIORITY_EPSILON
from ddrl.types import Discrete
from tests.apex.segments import FEATURES, IMAGES, Player, noise, remove, transitions
from tests.replay.test_priorities import chi_square


class SlowShard:
    """Transitions by name (actor, simulator, step), oldest first, each with its priority."""

    def __init__(self, format, exponent):
        self.format, self.exponent = format, exponent
        self.live = {}  # name: (transition, priority)
        self.refused = 0
        self.newest = {}

    def insert(self, segment):
        stream = segment.actor, segment.simulator
        names = [segment.first_step + int(row) - int(segment.row[0]) for row in segment.row]
        if (segment.run_id, names[0]) < self.newest.get(stream, (0, 0)):
            self.refused += 1
            return False
        self.newest[stream] = segment.run_id, names[-1] + 1
        for step, transition, priority in zip(
            names, transitions(self.format, segment), segment.priority.tolist(), strict=True
        ):
            self.live[(*stream, segment.run_id, step)] = [transition, priority]
        return True

    def name(self, sample, i):
        """Observations are noise: the transition that has this one is found by it."""
        content = sample.observation[i].tobytes() + sample.next_observation[i].tobytes()
        return self.by_content[content]

    def index(self):
        self.by_content = {t[0].tobytes() + t[4].tobytes(): name for name, (t, _) in self.live.items()}

    def weights(self):
        return np.array([(p + PRIORITY_EPSILON) ** self.exponent for _, p in self.live.values()])


def assert_same(shard, slow):
    """Everything there is, and what is drawn of it, is as the slow one has it; the names by key."""
    shard.check()
    slow.index()
    live = np.flatnonzero(shard._tree.weights)
    assert shard.size == len(live) == len(slow.live) == len(slow.by_content)
    everything = shard._gather(live, np.ones(len(live)))
    names = {}
    for i in range(len(live)):
        name = names[int(everything.key[i])] = slow.name(everything, i)
        transition = slow.live[name][0]
        for mine, other in zip(everything[:5], transition[:5], strict=True):
            np.testing.assert_array_equal(mine[i], other)
        assert everything.behaviour_version[i] == transition[5]
    assert len(names) == len(set(names.values())) == len(live)
    sample = shard.sample(np.random.default_rng(len(live)), 64, 0.4)
    chances = dict(zip(slow.live, slow.weights(), strict=True))
    drawn = np.array([chances[names[key]] for key in sample.key.tolist()])
    expected = (len(live) * drawn / sum(chances.values())) ** -0.4
    np.testing.assert_allclose(sample.weight, expected / expected.max(), rtol=1e-4)
    for i, key in enumerate(sample.key.tolist()):
        assert slow.name(sample, i) == names[key]
    return names


@pytest.mark.parametrize("exponent", (0.0, 0.6))
@pytest.mark.parametrize("format", (IMAGES, FEATURES))
@pytest.mark.parametrize("seed", range(2))
def test_agrees_with_a_dictionary_whatever_happens(format, exponent, seed):
    """Players come and go; segments come twice; priorities come late; some transitions are removed by key."""
    random = np.random.default_rng(seed)
    capacity = 120
    shard, slow = ShardReplay(format, capacity, priority_exponent=exponent), SlowShard(format, exponent)
    players = [Player(format, 2, actor, 0, seed=10 * seed + actor) for actor in range(3)]
    keys, gone, ignored, duplicates = {}, np.zeros(0, np.int64), 0, 0
    for turn in range(60):
        actor = int(random.integers(3))
        if random.random() < 0.1:  # it died, and comes back
            players[actor] = Player(format, 2, actor, turn + 1, seed=1000 + turn)
        for segment in players[actor].play(int(random.integers(5, 30))):
            assert shard.insert(format.encode(segment)) and slow.insert(segment)
            if random.random() < 0.2:
                assert not shard.insert(segment) and not slow.insert(segment)
                duplicates += 1
            # Where episodes end so often, there may be no room for frames before there are so many transitions.
            room_for_frames = 0 if format is FEATURES else 30
            expected = min(len(slow.live), int(1.25 * capacity))
            assert expected - room_for_frames <= shard.size <= expected
            while len(slow.live) > shard.size:
                del slow.live[next(iter(slow.live))]
        if not shard.size:
            continue
        if turn % 10 == 9:
            keys = assert_same(shard, slow)
            late = np.concatenate([gone, random.choice(list(keys), 20, replace=False)])
            priorities = random.exponential(size=len(late)).astype(np.float32)
            shard.set_priorities(late, priorities)
            ignored += len(gone)
            for key, priority in zip(late.tolist(), priorities.tolist(), strict=True):
                if key in keys:
                    slow.live[keys[key]][1] = priority
            removed = random.choice(list(keys), 15, replace=False)
            assert remove(shard, removed) == 15
            for key in removed.tolist():
                del slow.live[keys[key]]
            gone = np.concatenate([gone, removed])
        if turn % 7 == 6:
            assert shard.trim() == max(0, len(slow.live) - capacity)
            while len(slow.live) > capacity:
                del slow.live[next(iter(slow.live))]
    assert_same(shard, slow)
    counts = shard.counters()
    assert (counts["ignored"], counts["refused"]) == (ignored, duplicates)
    assert counts["inserted"] - counts["evicted"] == counts["size"]
    assert ignored > 0 and duplicates > 5 and counts["evicted"] > 300


def fill(shard, count, random=None, **options):
    random = random or np.random.default_rng(0)
    for i in range(count):
        assert shard.insert(noise(shard.format, random, simulator=i % 4, first_step=i // 4 * 100, **options))


def all_keys(shard):
    """In the order of the places."""
    return shard._keys[shard._tree.weights > 0]


@pytest.mark.parametrize("exponent", (0.0, 0.6, 1.0))
def test_transitions_are_drawn_in_proportion_to_their_priorities(exponent):
    shard = ShardReplay(FEATURES, 40, priority_exponent=exponent)
    fill(shard, 4)
    keys = all_keys(shard)
    priorities = np.random.default_rng(2).random(len(keys)).astype(np.float32) + 0.05
    shard.set_priorities(keys, priorities)
    random = np.random.default_rng(3)
    drawn = np.concatenate([shard.sample(random, 1).key for _ in range(5_000)])
    counts = np.array([(drawn == key).sum() for key in keys])
    chances = priorities**exponent / (priorities**exponent).sum()
    assert chi_square(counts, len(drawn) * chances) < 4
    if exponent:
        assert chi_square(counts, np.full(len(keys), len(drawn) / len(keys))) > 10, "the test could not tell"


def test_a_stratified_batch_has_one_of_each_part():
    shard = ShardReplay(FEATURES, 40, priority_exponent=1.0)
    fill(shard, 4, priority=1.0)
    np.testing.assert_array_equal(np.sort(shard.sample(np.random.default_rng(0), 40).key), all_keys(shard))


def test_the_oldest_go_first():
    shard = ShardReplay(FEATURES, 100)
    fill(shard, 10)
    assert shard.trim() == 0
    old = all_keys(shard)
    remove(shard, old[[0, 5, 99]])  # 3 of the places are used again by newer ones
    for i in range(3):
        assert shard.insert(noise(FEATURES, np.random.default_rng(i), actor=1, first_step=100 * i))
    assert shard.size == 127 - 2, "the hard capacity"
    assert shard.trim() == 25
    left = all_keys(shard)
    assert len(left) == 100
    np.testing.assert_array_equal(np.intersect1d(left, old), np.setdiff1d(old[2 + 25 + 2 :], old[99]))


def test_inserting_never_fails_and_memory_has_a_bound():
    """Without a learner, which would trim."""
    for exponent in (None, -0.4):
        shard = ShardReplay(IMAGES, 100, eviction_exponent=exponent)
        player = Player(IMAGES, 4)
        for _ in range(40):
            for segment in player.play(20):
                shard.insert(segment)
                counts = shard.counters()
                assert counts["size"] <= 125
        shard.check()
        assert counts["inserted"] > 2000 and counts["size"] > 60
        assert shard._pool.frames.nbytes < (1.8 if exponent is None else 2.2) * 125 * IMAGES.frame_bytes


def test_short_segments_have_room_for_their_frames():
    """Each has 7 frames for its only transition: frames run out before places do."""
    shard = ShardReplay(IMAGES, 100)
    random = np.random.default_rng(0)
    for i in range(300):
        assert shard.insert(noise(IMAGES, random, first_step=i, transitions=1))
        shard.check()
    assert 25 < shard.size < 40
    assert shard.counters()["frames"] == 7 * shard.size


def test_a_transition_of_atari_takes_15_percent_more_than_a_frame():
    atari = SegmentFormat((4, 84, 84), "uint8", Discrete(6), stack=4, n_step=3)
    assert ShardReplay.bytes_for(atari, 1_000_000) / 1_250_000 < 1.15 * 84 * 84
    shard = ShardReplay(IMAGES, 1000)
    arrays = [shard._pool.frames, shard._pool.references, *shard._pool.items, shard._keys, shard._first_keys]
    arrays += [shard._tree._sums, shard._pool.free_items._ring, shard._pool.free_frames._ring]
    total = sum(array.nbytes for array in arrays)
    assert total <= ShardReplay.bytes_for(IMAGES, 1000) <= total + 1000


@pytest.mark.parametrize("exponent", (-0.4, -1.0, 0.0))
def test_eviction_by_inverse_priority(exponent):
    """How often each of 60 transitions goes when 40 stay: as if drawn one after the other without repetition."""
    random = np.random.default_rng(0)
    segments = [noise(FEATURES, random, first_step=100 * i) for i in range(6)]
    priorities = np.concatenate([s.priority for s in segments])
    weights = (priorities.astype(np.float64) + PRIORITY_EPSILON) ** exponent
    rounds, mine, expected = 200, np.zeros(60), np.zeros(60)
    for seed in range(rounds):
        shard = ShardReplay(FEATURES, 50, eviction_exponent=exponent, seed=1000 + seed)
        for segment in segments:
            shard.insert(segment)
        assert shard.trim() == 10
        mine[shard._tree.weights[:60] == 0] += 1
    for _ in range(10 * rounds):
        expected[random.choice(60, 10, replace=False, p=weights / weights.sum())] += 1 / 10
    assert np.abs(mine - expected).max() < 5 * np.sqrt(rounds * 0.25)
    assert np.corrcoef(mine, expected)[0, 1] > 0.9 or exponent == 0.0
    spread = (mine - expected) / np.sqrt(expected * (1 - expected / rounds) + 1)
    assert np.mean(spread**2) < 1.6


def test_new_priorities_change_what_is_evicted():
    shard = ShardReplay(FEATURES, 50, eviction_exponent=-2.0)
    fill(shard, 6, priority=1.0)
    keys = all_keys(shard)
    shard.set_priorities(keys[:10], np.full(10, 1e-3, np.float32))
    assert shard.trim() == 10
    np.testing.assert_array_equal(all_keys(shard), keys[10:])
    shard.check()


def test_keys_are_never_given_again():
    for exponent in (None, -0.4):
        shard, random = ShardReplay(FEATURES, 20, eviction_exponent=exponent), np.random.default_rng(0)
        seen = {}
        for i in range(200):
            shard.insert(noise(FEATURES, random, first_step=10 * i))
            sample = shard.sample(random, 200)
            for key, observation in zip(sample.key.tolist(), sample.observation, strict=True):
                assert seen.setdefault(key, observation.tobytes()) == observation.tobytes()
        assert len(seen) > 1000


def test_a_later_incarnation_has_other_keys():
    seen = np.zeros(0, np.int64)
    for run in (0, 1, 2, 32_767):
        shard = ShardReplay(FEATURES, 20, run=run)
        fill(shard, 2)
        keys = all_keys(shard)
        assert keys.min() >= 0 and not len(np.intersect1d(seen, keys))
        before = shard._tree.weights.copy()
        shard.set_priorities(seen, np.ones(len(seen), np.float32))
        assert shard.ignored == len(seen)
        np.testing.assert_array_equal(shard._tree.weights, before)
        seen = np.concatenate([seen, keys])


def test_unknown_keys_are_ignored_and_counted():
    shard = ShardReplay(FEATURES, 50)
    fill(shard, 2)
    unknown = np.array([-1, -7, 20, 2**62, 10**9], np.int64)
    before = shard._tree.weights.copy()
    shard.set_priorities(unknown, np.full(5, 9.0, np.float32))
    assert (shard.ignored, shard.updated, shard.size) == (5, 0, 20)
    np.testing.assert_array_equal(shard._tree.weights, before)


def test_the_last_of_equal_keys_wins_and_a_priority_of_0_can_be_drawn():
    shard = ShardReplay(FEATURES, 50, priority_exponent=1.0)
    fill(shard, 1)
    keys = all_keys(shard)
    shard.set_priorities(np.repeat(keys, 2), np.tile(np.array([5.0, 0.0], np.float32), 10))
    np.testing.assert_allclose(shard._tree.weights[:10], PRIORITY_EPSILON)
    assert len(np.unique(shard.sample(np.random.default_rng(0), 100).key)) == 10


@pytest.mark.parametrize("bad", (np.nan, -0.1, np.inf))
def test_bad_priorities_change_nothing(bad):
    shard = ShardReplay(FEATURES, 50)
    fill(shard, 1)
    keys, before = all_keys(shard), shard._tree.weights.copy()
    with pytest.raises(UsageError, match="not a number: 1 of 3, "):
        shard.set_priorities(keys[:3], np.array([1.0, bad, 2.0]))
    segment = noise(FEATURES, np.random.default_rng(0), first_step=500)
    segment.priority[2] = bad
    with pytest.raises(UsageError, match="priority"):
        shard.insert(segment)
    with pytest.raises(UsageError, match="CRC"):
        shard.insert(b"\0" * 500)
    assert (shard.refused, shard.inserted, shard.updated) == (2, 10, 0)
    np.testing.assert_array_equal(shard._tree.weights, before)
    segment.priority[2] = 1.0
    assert shard.insert(segment), "what was refused may come again when it is right"


def test_steps_that_were_here_are_refused():
    shard, random = ShardReplay(FEATURES, 100), np.random.default_rng(0)

    def insert(**name):
        return shard.insert(noise(FEATURES, random, **name))

    assert insert(first_step=20)
    assert not insert(first_step=20), "the same"
    assert not insert(first_step=29), "the last step is the same"
    assert not insert(first_step=10), "older"
    assert insert(first_step=30)
    assert insert(first_step=50), "a segment was lost before"
    assert insert(first_step=20, simulator=1) and insert(first_step=20, actor=1)
    assert insert(first_step=0, run_id=2), "it came back"
    assert not insert(first_step=60, run_id=1), "a late one of the earlier incarnation"
    assert shard.counters()["refused"] == 4 and shard.counters()["streams"] == 3


def test_observations_can_be_written_where_one_wants_them():
    shard = ShardReplay(IMAGES, 50)
    fill(shard, 3)
    into = tuple(np.zeros((16, *IMAGES.observation_shape), np.uint8) for _ in range(2))
    mine = shard.sample(np.random.default_rng(0), 16, 0.4, into)
    other = shard.sample(np.random.default_rng(0), 16, 0.4)
    assert mine.observation is into[0] and mine.next_observation is into[1]
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_statistics():
    shard = ShardReplay(FEATURES, 50, priority_exponent=0.5)
    with pytest.raises(ValueError, match="no transition"):
        shard.ages(np.array([0.5]))
    with pytest.raises(ValueError, match="no transition"):
        shard.sample(np.random.default_rng(0), 4)
    fill(shard, 5, priority=0.1)
    np.testing.assert_array_equal(shard.ages(np.array([0.0, 0.5, 1.0])), [0, 24.5, 49])
    shard.set_priorities(all_keys(shard)[:6], np.array([0, 0.001, 0.02, 0.5, 1.5, 100], np.float32))
    np.testing.assert_array_equal(shard.priority_histogram(np.array([0.01, 0.05, 1.0])), [2, 1, 45, 2])
    fill_more = noise(FEATURES, np.random.default_rng(0), actor=9)
    shard.insert(fill_more)
    np.testing.assert_array_equal(shard.ages(np.array([0.0, 1.0])), [0, 59])
    counts = shard.counters()
    assert counts["inserted"] == counts["size"] == 60 and counts["updated"] == 6 and counts["frames"] == 6 * 15


@pytest.mark.parametrize(
    "options, words",
    (
        ({"capacity": 9}, "--replay-capacity: the part of a shard, 9, must be at least the length of a segment, 10"),
        ({"capacity": 10**9}, "use more --replay-shards"),
        ({"priority_exponent": 1.1}, "--priority-exponent 1.1"),
        ({"eviction_exponent": 0.1}, "--eviction-exponent 0.1"),
        ({"run": -1}, "incarnation -1"),
        ({"run": 32_768}, "incarnation 32768"),
    ),
)
def test_bad_numbers_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        ShardReplay(**{"format": FEATURES, "capacity": 100, **options})
