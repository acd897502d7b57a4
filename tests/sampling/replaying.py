"""Schedules that learn from a replay, on counting environments, with targets and a learner of a few operations."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from ddrl.ops.draws import epsilon_greedy
from ddrl.replay.replay import Replay
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor_threads import ActorThreads
from ddrl.sampling.replay_batches import ReplayBatches
from ddrl.sampling.replay_schedules import Concurrent, Standard
from ddrl.types import Snapshot
from tests.sampling.test_rollouts import SIZE, make_actor, rollout

BATCH = 4
UPDATES = {Standard: 3, Concurrent: 10}  # minibatches in a period
ROWS = {Standard: 2, Concurrent: 5}  # steps of every simulator in it
PERIODS = 4  # of the standard schedule, from one copy to the target network to the next
MINIMUM = 70  # 12 rows: no multiple of a buffer of either
STEP_SIZE = np.float32(0.001)


def targets(target, batch):
    """Depends on all that targets are made of."""
    scaled = batch.next_observation * np.float32([0.01, 0.02, 0.03])
    value = (scaled[:, 0] + scaled[:, 1] + scaled[:, 2]) * target[0]  # a product of matrices may depend on other rows
    return (batch.reward + batch.discount * value).astype(np.float32)


class Recorded:
    """`targets`, and the vectors and rows that they were asked for."""

    def __init__(self):
        self.calls = []

    def __call__(self, target, batch):
        self.calls.append((np.array(target), len(batch.reward)))
        return targets(target, batch)


def make_replay(exponent=0.0, n_step=2, capacity=40 * SIZE):
    return Replay(capacity, SIZE, (3,), np.float32, n_step=n_step, priority_exponent=exponent)


def make_batches(replay, function=targets, **changes):
    settings = {"updates": 10, "ahead": 8, "importance": lambda updates: 0.4 + updates / 1000}
    return ReplayBatches(replay, function, batch_size=BATCH, seed=(3, 0), **settings | changes)


def make_schedule(
    kind, directory=Path("unused"), *, groups=1, pause=0.0, saves=True, minimum=MINIMUM, exponent=0.6, ahead=4
):
    ended, size = threading.Event(), SIZE // groups
    draw = epsilon_greedy(lambda ids, counts: np.where(counts < minimum / SIZE, 1.0, 0.3))
    actors = [make_actor(size, i * size, ended, pause=pause, draw=draw, last_value=False) for i in range(groups)]
    for actor in actors:
        actor.environment.can_save_state = saves
    batches = make_batches(make_replay(exponent), Recorded(), updates=UPDATES[kind], ahead=ahead)
    common = (
        ActorThreads(actors, ended),
        rollout(ROWS[kind]),
        batches,
        minimum,
        directory,
        RankMetrics("worker", 0),
        ended,
    )
    schedule = kind(*common, target_periods=PERIODS) if kind is Standard else kind(*common)
    schedule.set_state({}, reset_seed=1)
    return schedule


def content(replay):
    """What a replay holds, as one draw shows it: transitions, and the chances of each."""
    drawn = replay.sample(np.random.default_rng(0), 200, 1.0)[:-1] if replay.size else []
    return replay.size, *(array.tobytes() for array in drawn)


class Training:
    """Gradient descent on what a schedule gives.

    Attributes:
        added: the unrolls that the replay got, and the update before which it got each.
        batches: of each update.
        contents: of the replay at each update.
        thetas: theta^- at each update.
    """

    def __init__(self, schedule, parameters=(0.5, 1.5), version=0):
        self.schedule, self.version, self.parameters = schedule, version, np.float32(parameters)
        self.history, self.batches, self.contents, self.thetas, self.added = [self.parameters], [], [], [], []
        add = schedule.replay.add

        def recorded(unroll, **options):
            self.added.append((self.version, type(unroll)(*(array.copy() for array in unroll))))
            add(unroll, **options)

        schedule.replay.add = recorded

    def snapshot(self):
        return Snapshot(self.version, self.version, self.parameters)

    def update(self):
        snapshot, batch = self.schedule.next_batch(self.snapshot)
        assert snapshot.version == self.version
        self.batches.append(type(batch)(*(array.copy() for array in batch)))
        self.contents.append(content(self.schedule.replay))
        self.thetas.append(self.schedule.target)
        error = batch.target - batch.observation @ self.parameters[[0, 1, 1]] * np.float32(0.01)
        self.schedule.learned(batch, np.abs(error))
        data = float((batch.weight * error).sum() + batch.action.sum())
        self.parameters = self.parameters - STEP_SIZE * np.float32([data, -data])
        self.version += 1
        self.history.append(self.parameters)

    def run(self, updates):
        for _ in range(updates):
            self.update()
        return self


def assert_equal(batches, other):
    """Two lists of batches, to the bit."""
    assert len(batches) == len(other)
    for i, (a, b) in enumerate(zip(batches, other, strict=True)):
        for name, x, y in zip(a._fields, a, b, strict=True):
            np.testing.assert_array_equal(x, y, f"{name} of batch {i}", strict=True)
