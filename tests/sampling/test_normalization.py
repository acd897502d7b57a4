"""What workers see for the running statistics: against slow sums, with all schedules, and after a resume."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ddrl.envs import Step
from ddrl.exchange.statistics import Moments, Statistics, block_size, packed, unpacked
from ddrl.networks.normalization import LIMIT, Normalization
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor_threads import ActorThreads
from ddrl.sampling.batcher import Batcher
from ddrl.sampling.minibatches import Minibatches
from ddrl.sampling.normalization import RunningReturns, Seen
from ddrl.sampling.pool import DataPointPool
from ddrl.sampling.replay_schedules import Concurrent, Standard, averaged
from ddrl.sampling.rollout_schedules import DoubleBuffered, SynchronizedRollouts
from ddrl.types import DataPoints, Snapshot
from tests.sampling import replaying
from tests.sampling.test_rollout_schedules import STEP_SIZE, Training, gradient
from tests.sampling.test_rollouts import DISCOUNT, SIZE, make_actor, rollout

STEPS, BATCHES = 4, 4
BOTH = Normalization(observations=True, rewards=True, size=block_size(3) + block_size(1))
STATISTICS = Statistics(2, (3, 1))


def running_returns(size=SIZE, scales=True):
    return RunningReturns(size, DISCOUNT, lambda rewards: np.float32(2.0) * rewards, False, scales)


def a_step(rewards, valid=True, terminated=False, truncated=False):
    rows = len(rewards)
    flags = (np.full(rows, flag) for flag in (terminated, truncated, valid, False))
    return Step(np.arange(rows, dtype=np.int32), np.zeros((rows, 3)), np.float32(rewards), *flags)


def version(deviation, mean=7.0):
    """Parameters whose returns have this deviation."""
    return np.concatenate([np.ones(5, np.float32), packed(Moments(10.0, np.array([mean]), np.array([deviation**2])))])


def test_returns_run_through_an_episode_and_count_once():
    returns = running_returns(2)
    seen, running = [], np.zeros(2)
    for t in range(30):
        ends, valid = t % 7 == 6, t % 7 != 0 or t == 0
        step = a_step([t, -t], valid=valid, terminated=ends and t % 2 == 0, truncated=ends and t % 2 == 1)
        if not valid:
            step = step._replace(reward=np.zeros(2, np.float32))
        returns.of(step)
        if valid:
            running = DISCOUNT * running + 2.0 * np.array([t, -t])
            seen += running.tolist()
            running *= not ends
    moments = returns.take()
    assert moments.count == len(seen) and returns.take().count == 0
    np.testing.assert_allclose(moments.mean, np.mean(seen), atol=1e-12)
    np.testing.assert_allclose(moments.variance, np.var(seen), rtol=1e-12)


def test_rewards_are_over_the_deviation_of_the_version_that_acts():
    returns = running_returns(2)
    np.testing.assert_array_equal(returns.of(a_step([1.5, 9.0])), [3.0, LIMIT])  # nothing was seen: as they are
    returns.use(version(4.0))
    np.testing.assert_allclose(returns.of(a_step([1.5, -900.0])), [0.75, -LIMIT], rtol=1e-6)
    replay = running_returns(2, scales=False)
    replay.use(version(4.0))
    np.testing.assert_array_equal(replay.of(a_step([1.5, -900.0])), [3.0, -1800.0])


def test_a_reward_that_is_no_number_is_told_once_and_ends_with_its_gradient():
    metrics, returns = RankMetrics("worker", 3), running_returns(2)
    seen = Seen(Normalization(rewards=True, size=6), 3, [returns], metrics)
    empty = rollout(1, 2)
    for _ in range(2):
        returns.of(a_step([np.nan, 1.0]))
        assert not np.isfinite(seen.of_unroll(empty)).all()
    returns.of(a_step([1.0, 1.0]))
    assert np.isfinite(seen.of_unroll(empty)).all()
    (event,) = metrics.report()["events"]
    assert event["text"].startswith("the discounted return that worker 3 saw is NaN, infinite, or too large")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_an_observation_that_is_no_number_is_named(value):
    metrics = RankMetrics("worker", 0)
    seen = Seen(Normalization(observations=True, size=14), 3, (), metrics)
    observation = np.ones((5, 3), np.float32)
    observation[2, 1] = value
    points = DataPoints(observation, np.zeros(5, np.int32), *[np.zeros(5)] * 3)
    assert not np.isfinite(seen.of_batch(points)).all()
    assert metrics.report()["events"][0]["text"].startswith("component 1 of the observations that worker 0 saw")


def test_a_data_point_that_is_used_several_times_is_counted_once():
    observation = np.random.default_rng(0).normal(5.0, 2.0, (400, 3)).astype(np.float32)
    pool = DataPointPool(Batcher(8, (3,), np.float32).empty, 4, 3, (0,))
    seen = Seen(Normalization(observations=True, size=14), 3, (), RankMetrics("worker", 0))
    batches = pool.add(DataPoints(observation, np.arange(400, dtype=np.int32), *[np.zeros(400)] * 3))
    total = unpacked(seen.statistics.merged([seen.of_batch(batch) for batch in batches]))
    drawn = np.concatenate([batch.action for batch in batches])
    rows = observation[np.unique(drawn)].astype(np.float64)
    assert total.count == len(rows) < len(drawn) / 3
    np.testing.assert_allclose(total.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(total.variance, rows.var(axis=0), rtol=1e-9)


class Recorded(Seen):
    """Keeps what it was shown."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.rows = []

    def _of(self, observations, counted):
        self.rows.append(observations[counted].copy())
        return super()._of(observations, counted)


class Normalizing(Training):
    """Gradient descent that merges what gradients carry."""

    def __init__(self, schedule, parameters=None, version=0):
        start = np.concatenate([[0.5, 1.5], np.zeros(STATISTICS.size)])
        super().__init__(schedule, start if parameters is None else parameters, version)
        self.carried = []

    def update(self):
        self.schedule.update(self.snapshot())
        snapshot, batch = self.schedule.next_batch(self.snapshot)
        parameters = self.parameters.copy()
        parameters[:2] -= STEP_SIZE * gradient(snapshot.parameters[:2], batch)
        contribution = self.schedule.contribution(batch)
        if contribution is not None:
            self.carried.append(self.version)
            STATISTICS.advance(parameters, [np.concatenate([[0, 0], contribution])], parameters)
        self.batches.append((np.array(snapshot.parameters), batch))
        self.parameters, self.version = parameters, self.version + 1
        self.history.append(parameters)


def make_schedule(kind, groups=2):
    ended, size = threading.Event(), SIZE // groups
    returns = [running_returns(size) for _ in range(groups)]
    actors = [make_actor(size, i * size, ended, returns=returns[i]) for i in range(groups)]
    for actor in actors:
        actor.transform_reward = lambda rewards: rewards
    minibatches = Minibatches(STEPS, 0.95, 2 * STEPS * SIZE // BATCHES, epochs=2, shuffle=True, seed=(3, 0))
    storages = [rollout(STEPS) for _ in range(1 + (kind is DoubleBuffered))]
    more = {"statistics": STATISTICS.size} if kind is DoubleBuffered else {}
    schedule = kind(ActorThreads(actors, ended), *storages, minibatches, ended, **more)
    schedule.seen = Recorded(BOTH, 3, returns, RankMetrics("worker", 0))
    schedule.set_state({}, reset_seed=1)
    return schedule


KINDS = [SynchronizedRollouts, DoubleBuffered]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_is_counted_once_and_with_its_last_gradient(kind):
    training = Normalizing(make_schedule(kind)).run(5 * BATCHES)
    training.schedule.stop()
    assert training.carried == [BATCHES * i + BATCHES - 1 for i in range(5)]
    observations, returns = np.split(STATISTICS.of(training.parameters), [block_size(3)])
    rows = np.concatenate(training.schedule.seen.rows[:5]).astype(np.float64)
    moments = unpacked(observations)
    assert moments.count == len(rows) == unpacked(returns).count
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, rows.var(axis=0), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_all_gradients_of_a_rollout_normalize_as_acting_did(kind):
    training = Normalizing(make_schedule(kind)).run(5 * BATCHES)
    training.schedule.stop()
    for first in range(0, 5 * BATCHES, BATCHES):
        acted = training.batches[first][1].behaviour_version[0]
        for point, _ in training.batches[first : first + BATCHES]:
            np.testing.assert_array_equal(STATISTICS.of(point), STATISTICS.of(training.history[acted]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 1, 4, 5, 7, 8, 11])
def test_resume_equals_uninterrupted_with_statistics(kind, at):
    whole = Normalizing(make_schedule(kind)).run(20)
    first = Normalizing(make_schedule(kind)).run(at)
    state = first.schedule.get_state()
    first.schedule.stop()
    resumed = Normalizing(make_schedule(kind), first.parameters, at)
    resumed.schedule.set_state(state, reset_seed=1)
    resumed.run(20 - at)
    np.testing.assert_array_equal(resumed.history, whole.history[at:])
    for training in (whole, resumed):
        training.schedule.stop()


@pytest.mark.parametrize("kind", [Standard, Concurrent])
def test_what_goes_into_a_replay_is_counted_once(kind, tmp_path):
    schedule = replaying.make_schedule(kind, tmp_path)
    schedule.seen = Recorded(Normalization(observations=True, size=14), 3, (), RankMetrics("worker", 0))
    schedule.set_state({}, reset_seed=1)
    statistics, total, carried = Statistics(0, (3,)), np.zeros(14, np.float32), []
    for update in range(4 * replaying.UPDATES[kind]):
        _, batch = schedule.next_batch(lambda: Snapshot(0, 0, np.ones(2, np.float32)))
        if (contribution := schedule.contribution(batch)) is not None:
            carried.append(update)
            statistics.advance(total, [contribution], total)
    schedule.stop()
    assert carried == [i * replaying.UPDATES[kind] for i in range(4)]
    rows = np.concatenate(schedule.seen.rows).astype(np.float64)
    assert unpacked(total).count == len(rows) > replaying.MINIMUM - SIZE
    np.testing.assert_allclose(unpacked(total).mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(unpacked(total).variance, rows.var(axis=0), rtol=1e-9)


def test_averaged_parameters_have_the_newest_statistics():
    old, new = np.zeros(8, np.float32), np.arange(8, dtype=np.float32)
    found = averaged(Snapshot(1, 0, old), Snapshot(2, 0, new), 0.25, statistics=6).parameters
    np.testing.assert_array_equal(found, [0.0, 0.25, 2, 3, 4, 5, 6, 7])
