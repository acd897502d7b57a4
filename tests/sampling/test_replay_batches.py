"""The minibatches of a learning period: what they depend on, and what not."""

from __future__ import annotations

import os

import numpy as np
import pytest

from ddrl.envs.pinning import pin_thread
from ddrl.types import Replayed, Snapshot
from tests.envs.test_pinning import CORES, in_thread
from tests.sampling.replaying import BATCH, Recorded, assert_equal, content, make_batches, make_replay, targets
from tests.sampling.test_rollouts import SIZE, make_actor, rollout, snapshot

TARGET = Snapshot(7, 7, np.float32([0.3, 0.7]))
UPDATES = 10


def filled(exponent=0.0):
    """A replay of 30 steps of all simulators, whose priorities differ."""
    replay, out = make_replay(exponent), rollout(30)
    make_actor(SIZE).fill(out, lambda: snapshot(3))
    replay.add(out)
    keys = np.flatnonzero(replay._tree.weights)  # a key is that of a place until places are used again
    replay.set_priorities(keys, np.random.default_rng(5).random(len(keys)).astype(np.float32))
    return replay


def priorities(update):
    return np.random.default_rng([1, update]).random(BATCH).astype(np.float32) * 5.0


def learn(batches, updates=UPDATES, first=0):
    """The minibatches of the updates from `first` to `updates` of a period."""
    out = []
    for update in range(first, updates):
        batch = batches.take()
        out.append(batch._replace(observation=batch.observation.copy(), next_observation=batch.next_observation.copy()))
        batches.learned(out[-1], priorities(update))
    return out


@pytest.mark.parametrize("exponent, beta", [(0.0, 0.0), (0.6, 0.5)])
def test_minibatches_drawn_at_once_are_those_drawn_one_after_the_other(exponent, beta):
    replay, random, other = filled(exponent), np.random.default_rng(4), np.random.default_rng(4)
    at_once = replay.sample(random, BATCH, beta, batches=7)
    apart = [replay.sample(other, BATCH, beta) for _ in range(7)]
    assert_equal(
        [at_once],
        [Replayed(*(np.concatenate(arrays) for arrays in zip(*(drawn[:-1] for drawn in apart), strict=True)))],
    )
    assert random.random() == other.random()


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_it_makes_no_difference_how_many_are_drawn_ahead(exponent):
    given = {}
    for ahead in (1, 3, 8, 10):
        batches, given[ahead] = make_batches(filled(exponent), ahead=ahead), []
        for period in (1, 2):
            batches.start(period, TARGET, (period - 1) * UPDATES)
            given[ahead] += learn(batches)
            assert batches.empty
            batches.finish()
    for ahead in (3, 8, 10):
        assert_equal(given[ahead], given[1])


def test_a_minibatch_is_what_the_replay_gave_with_its_targets():
    replay = filled(0.6)
    batches = make_batches(replay, importance=lambda updates: 0.4)
    batches.start(4, TARGET, 3 * UPDATES)
    batch = batches.take()
    drawn = replay.sample(np.random.default_rng([3, 0, 4]), BATCH, 0.4)
    np.testing.assert_array_equal(batch.target, targets(TARGET.parameters, drawn))
    for name in ("observation", "action", "weight", "behaviour_version", "key"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(drawn, name), name)


@pytest.mark.parametrize("change", [{"seed": (4, 0)}, {"seed": (3, 1)}, {"period": 2}])
def test_seed_worker_and_period_each_give_other_minibatches(change):
    keys = []
    for period, seed in ((1, (3, 0)), (change.get("period", 1), change.get("seed", (3, 0)))):
        batches = make_batches(filled())
        batches._seed = seed
        batches.start(period, TARGET, (period - 1) * UPDATES)
        keys.append([batch.key for batch in learn(batches)])
    assert (np.array(keys[0]) != np.array(keys[1])).mean() > 0.8


def test_the_minibatches_of_a_period_differ():
    batches = make_batches(filled())
    batches.start(1, TARGET, 0)
    keys = np.array([batch.key for batch in learn(batches)])
    assert len(np.unique(keys, axis=0)) == UPDATES


def test_priorities_count_from_the_end_of_the_period_on_and_in_their_order():
    replay, expected = filled(0.6), filled(0.6)
    batches = make_batches(replay)
    batches.start(1, TARGET, 0)
    before = content(replay)
    given = learn(batches)
    assert content(replay) == before
    batches.finish()
    assert content(replay) != before
    assert len(np.unique([batch.key for batch in given])) < UPDATES * BATCH, "no transition was drawn twice"
    for update, batch in enumerate(given):
        expected.set_priorities(batch.key, priorities(update))
    assert content(replay) == content(expected)
    replay.set_priorities(given[0].key, np.full(BATCH, 9.0, np.float32))
    after = content(replay)
    batches.finish()
    assert content(replay) == after, "priorities of one period were set twice"


def test_without_priorities_nothing_waits():
    replay = filled()
    batches = make_batches(replay)
    batches.start(1, TARGET, 0)
    before = content(replay)
    learn(batches)
    batches.finish()
    assert content(replay) == before and len(batches.get_state()["waiting.keys"]) == 0


def test_importance_is_that_of_the_updates_before_the_period():
    asked = []
    batches = make_batches(filled(0.6), importance=lambda updates: asked.append(updates) or 0.4)
    for period in (1, 2, 3):
        batches.start(period, TARGET, (period - 1) * UPDATES)
        learn(batches)
        batches.finish()
    assert sorted(set(asked)) == [0, UPDATES, 2 * UPDATES]


def test_importance_follows_the_updates_of_all_workers_also_after_a_resume():
    """Where others update too, a worker's periods say little of how far the run is."""
    asked = []
    first, resumed = (
        make_batches(filled(0.6), ahead=4, importance=lambda updates: asked.append(updates) or 0.4) for _ in range(2)
    )
    first.start(3, TARGET, 12_345)
    learn(first, 5)
    resumed.set_state(first.get_state(), TARGET)
    learn(resumed, first=5)
    assert set(asked) == {12_345}


def test_targets_are_computed_together_where_they_are_known_ahead():
    recorded = Recorded()
    batches = make_batches(filled(), recorded, ahead=8)
    batches.start(1, TARGET, 0)
    learn(batches)
    assert [rows for _, rows in recorded.calls] == [8 * BATCH, 2 * BATCH]
    assert all((target == TARGET.parameters).all() for target, _ in recorded.calls)


def test_minibatches_are_prepared_on_all_cores_beside_a_pinned_thread():
    cores = []

    def noting(target, batch):
        cores.append(os.sched_getaffinity(0))
        return targets(target, batch)

    def work():
        pin_thread(CORES[-1])
        batches = make_batches(filled(), noting, ahead=8)
        batches.start(1, TARGET, 0)
        learn(batches)

    in_thread(work)
    assert cores == [{CORES[-1]}, set(CORES)]


@pytest.mark.parametrize("taken", range(UPDATES + 1))
def test_a_period_goes_on_where_it_was(taken):
    whole, first = (make_batches(filled(0.6), ahead=4) for _ in range(2))
    for batches in (whole, first):
        batches.start(5, TARGET, 4 * UPDATES)
    expected = learn(whole)[taken:]
    learn(first, taken)
    resumed = make_batches(filled(0.6), ahead=4)
    resumed.set_state({name: array.copy() for name, array in first.get_state().items()}, TARGET)
    assert resumed.taken == taken
    assert_equal(learn(resumed, first=taken), expected)
    for batches in (whole, resumed):
        assert batches.empty
        batches.finish()
    assert content(resumed.replay) == content(whole.replay)


def test_priorities_wait_over_a_resume_except_for_transitions_that_were_excluded(monkeypatch):
    first, resumed = (make_batches(filled(0.6)) for _ in range(2))
    first.start(5, TARGET, 4 * UPDATES)
    learn(first, 3)
    state = first.get_state()
    gone = state["waiting.keys"][0]
    monkeypatch.setattr(resumed.replay, "may_have_priorities", lambda keys: keys != gone)
    resumed.set_state(state, TARGET)
    left = resumed.get_state()["waiting.keys"]
    assert gone not in left and len(left) == (state["waiting.keys"] != gone).sum() > 0


def test_shorter_periods_than_before_leave_nothing_of_a_longer_one():
    long, short = make_batches(filled()), make_batches(filled(), updates=4)
    long.start(5, TARGET, 4 * UPDATES)
    learn(long, 7)
    short.set_state(long.get_state(), TARGET)
    assert short.empty
