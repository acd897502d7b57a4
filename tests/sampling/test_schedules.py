"""Both schedules with a scripted environment and a policy that knows its version."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from ddrl.envs.base import EpisodeTracker
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.batcher import Batcher
from ddrl.sampling.data_points import DataPointActor, DataPointBuilder
from ddrl.sampling.schedules import Asynchronous, Synchronized
from ddrl.types import Discrete, Snapshot

ENVIRONMENTS, BATCH, N = 4, 20, 3


class Counting:
    """Environments that count; the episode of environment i has 3 + i steps. Its state can be saved."""

    batch_size = num_envs = ENVIRONMENTS
    can_save_state = True
    action_space = Discrete(2)

    def __init__(self, pause=0.0):
        self.pause, self.fail_after, self.received = pause, None, 0

    def reset(self, seed):
        self.tracker = EpisodeTracker(ENVIRONMENTS)
        self.place = np.full(ENVIRONMENTS, seed % 1000)
        self.actions = np.zeros(ENVIRONMENTS, np.int64)

    def recv(self):
        time.sleep(self.pause)
        self.received += 1
        if self.fail_after is not None and self.received > self.fail_after:
            raise RuntimeError("the emulator broke")
        ids = np.arange(ENVIRONMENTS)
        over = (self.place % (3 + ids)) == 0
        observation = np.stack([self.place, self.actions], axis=1).astype(np.float32)
        return self.tracker.step(ids, observation, np.ones(ENVIRONMENTS), over, np.zeros(ENVIRONMENTS, bool))

    def send(self, actions):
        self.actions = self.actions * 3 % 1009 + actions
        self.place = self.place + 1

    def pop_episodes(self):
        return self.tracker.pop_episodes()

    def get_state(self):
        return {"place": self.place.copy(), "actions": self.actions.copy()} | {
            f"tracker.{k}": v for k, v in self.tracker.get_state().items()
        }

    def set_state(self, state):
        self.reset(0)
        self.place, self.actions = state["place"].copy(), state["actions"].copy()
        self.tracker.set_state({k[8:]: v for k, v in state.items() if k.startswith("tracker.")})


def policy(parameters, observations):
    """The action depends on the parameters and the observation."""
    assert parameters is not None
    value = observations.sum(axis=1) * 0.01 + float(parameters[0])
    return np.stack([np.sin(value), np.cos(value)], axis=1).astype(np.float32), value.astype(np.float32)


def make_actor(environment=None, first_id=0, metrics=None, batcher=None, batch=BATCH, length=N):
    segments = DataPointBuilder(ENVIRONMENTS, length, (2,), np.float32, lambda version: 0.9, lambda r: r, False)
    metrics = metrics or RankMetrics("worker", 0)
    batcher = batcher or Batcher(batch, (2,), np.float32)
    return DataPointActor(
        environment or Counting(), policy, metrics, first_id=first_id, seed=5, segments=segments, batcher=batcher
    )


def snapshot(version):
    return Snapshot(version, version, np.full(1, version, np.float32))


def synchronized():
    return Synchronized(make_actor())


def asynchronous(environments=None, queue=2):
    metrics = RankMetrics("worker", 0)
    environments = environments or [Counting(), Counting()]
    batcher = Batcher(BATCH, (2,), np.float32)
    actors = [make_actor(e, i * ENVIRONMENTS, metrics, batcher) for i, e in enumerate(environments)]
    return Asynchronous(actors, queue, metrics)


class Slow(Counting):
    """While these step, an update makes newer parameters."""

    version = 1

    def recv(self):
        self.version += 1
        return super().recv()


def test_a_predictor_asks_for_parameters_once_the_observations_are_there():
    environment = Slow()
    actor = make_actor(environment)
    actor.reset(0)
    for version in (2, 3):
        actor.advance(lambda: snapshot(environment.version))
        assert actor.version == version


def batches_of(schedule, versions):
    return [schedule.next_batch(lambda v=version: snapshot(v))[1] for version in versions]


def assert_equal(batch, other):
    for a, b in zip(batch, other, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_synchronized_acts_with_the_parameters_that_learn():
    schedule = synchronized()
    schedule.set_state({}, reset_seed=1)
    first, *rest = batches_of(schedule, range(10, 18))
    assert (first.behaviour_version == 10).all()
    for version, batch in zip(range(11, 18), rest, strict=True):
        newest = batch.behaviour_version == version
        # What was left over from the batch before, or was open when it became full, is one version older.
        assert newest.any() and set(batch.behaviour_version) <= {version - 1, version}
        assert len(batch.action) == BATCH


def test_synchronized_is_on_policy_where_batches_end_with_segments():
    actor = make_actor(batch=ENVIRONMENTS * N)
    actor.environment.recv, endless = endless_recv(actor.environment), 10**6
    schedule = Synchronized(actor)
    schedule.set_state({}, reset_seed=endless)
    for version, batch in enumerate(batches_of(schedule, range(6))):
        assert (batch.behaviour_version == version).all()


def endless_recv(environment):
    """Games that never end."""

    def recv():
        observation = np.stack([environment.place, environment.actions], axis=1).astype(np.float32)
        nothing = np.zeros(ENVIRONMENTS, bool)
        return environment.tracker.step(np.arange(ENVIRONMENTS), observation, np.ones(ENVIRONMENTS), nothing, nothing)

    return recv


def test_synchronized_goes_on_from_its_state_identically():
    straight = synchronized()
    straight.set_state({}, reset_seed=3)
    batches_of(straight, range(5))
    state = straight.get_state()
    kept = {name: array.copy() for name, array in state.items()}
    expected = batches_of(straight, range(5, 12))
    other = synchronized()
    other.set_state(kept, reset_seed=99)
    assert_equal(batches_of(other, range(5, 12)), expected)
    assert all((state[name] == kept[name]).all() for name in kept), "the state was not a copy"


def test_synchronized_runs_are_equal_and_seeds_matter():
    def run(seed):
        schedule = synchronized()
        schedule.set_state({}, reset_seed=seed)
        return batches_of(schedule, range(4))

    assert_equal(run(1), run(1))
    assert (run(1)[0].observation != run(2)[0].observation).any()


class Held(Counting):
    """Its third step lasts until `go` is set; `acting` says that it has begun."""

    def __init__(self):
        super().__init__()
        self.acting, self.go = threading.Event(), threading.Event()

    def recv(self):
        if self.received == 2:
            self.acting.set()
            self.go.wait(60.0)
        return super().recv()


def test_synchronized_saves_nothing_in_the_middle_of_acting():
    environment = Held()
    schedule = Synchronized(make_actor(environment))
    schedule.set_state({}, reset_seed=1)
    thread = threading.Thread(target=batches_of, args=(schedule, [0]))
    thread.start()
    assert environment.acting.wait(60.0)
    assert schedule.get_state() == {}
    counted = schedule.counters()
    assert counted["actor.draws"].max() > 0, "no draw recurs after a resume"
    environment.go.set()
    thread.join(timeout=60)
    other = synchronized()
    other.set_state(counted, reset_seed=2)
    np.testing.assert_array_equal(other.actor.draws(), counted["actor.draws"])
    assert "actor.draws" in schedule.get_state()


def test_synchronized_ends():
    schedule = synchronized()
    schedule.set_state({}, reset_seed=1)
    assert schedule.next_batch(lambda: None) is None
    schedule.stop()
    assert schedule.next_batch(lambda: snapshot(0)) is None


def test_asynchronous_queue_and_lag_are_bounded():
    schedule = asynchronous(queue=2)
    schedule.update(snapshot(0))
    schedule.set_state({}, reset_seed=1)
    deadline, received, before = time.monotonic() + 20.0, [], None
    while received != before and time.monotonic() < deadline:  # acting runs into the full queue and waits there
        time.sleep(0.3)
        before, received = received, [actor.environment.received for actor in schedule.actors]
    assert received == before, "acting did not wait"
    lags = []
    for version in range(1, 40):
        schedule.update(snapshot(version))
        _, batch = schedule.next_batch(lambda v=version: snapshot(v))
        lags.append(version - batch.behaviour_version)
    schedule.stop()
    # The queue, one batch in each predictor's hands, the batch that fills, and segments of N steps: that is the most
    # that can have been acted before a version. A predictor may be held up with its batch while the other goes on.
    ahead = 2 + 2 + 1 + 1
    late = sorted(lag for lags_of_batch in lags for lag in lags_of_batch)
    assert late[0] >= 0 and np.median(late) <= ahead and late[-1] > 0


def test_asynchronous_batches_hold_every_environment():
    schedule = asynchronous()
    schedule.update(snapshot(0))
    schedule.set_state({}, reset_seed=1)
    batches = [schedule.next_batch(lambda: snapshot(0)) for _ in range(5)]
    schedule.stop()
    assert all(len(batch.action) == BATCH for _, batch in batches)


def ended(threads):
    """Whether all of them end; `stop` alone waits only for seconds, and the machine may pause for longer."""
    for thread in threads:
        thread.join(60.0)
    return not any(thread.is_alive() for thread in threads)


def test_an_error_of_a_predictor_comes_out_of_next_batch():
    broken = Counting()
    broken.fail_after = 3
    schedule = asynchronous([Counting(pause=0.01), broken])
    schedule.update(snapshot(0))
    schedule.set_state({}, reset_seed=1)
    with pytest.raises(RuntimeError, match="the emulator broke"):
        for _ in range(1000):
            schedule.next_batch(lambda: snapshot(0))
    schedule.stop()
    assert ended(schedule._threads)


@pytest.mark.parametrize("with_parameters", [False, True])
def test_asynchronous_stops_whatever_it_waits_for(with_parameters):
    schedule = asynchronous()
    if with_parameters:
        schedule.update(snapshot(0))
    schedule.set_state({}, reset_seed=1)
    waiting = threading.Thread(target=lambda: [schedule.next_batch(lambda: snapshot(0)) for _ in range(3)])
    waiting.start()
    schedule.stop()
    assert ended([waiting, *schedule._threads])


def test_asynchronous_keeps_its_action_streams_over_a_resume():
    schedule = asynchronous()
    schedule.update(snapshot(0))
    schedule.set_state({}, reset_seed=1)
    schedule.next_batch(lambda: snapshot(0))
    schedule.stop()
    for actor in schedule.actors:
        actor.environment.get_state = None  # predictors step it meanwhile
    state = schedule.get_state()
    assert set(state) == {"actor0.draws", "actor1.draws"} and state["actor0.draws"].min() > 0
    other = asynchronous()
    other.set_state(state, reset_seed=2)
    other.stop()
    for actor, name in zip(other.actors, state, strict=True):
        np.testing.assert_array_equal(actor.get_state()["draws"], state[name])


def test_other_simulators_than_before_draw_no_number_again():
    """Nobody knows whose stream was whose: all go on where the furthest one was."""
    schedule = asynchronous()
    schedule.set_state({"actor0.draws": np.array([3, 9]), "actor1.draws": np.array([5])}, reset_seed=2)
    schedule.stop()
    for actor in schedule.actors:
        draws = actor.get_state()["draws"]
        assert len(draws) > 2 and (draws == 9).all()


ANOTHER_SCHEDULE = {
    "fewer groups": ({"actor0.draws": np.array([3, 9])}, asynchronous),
    "other simulators": ({"actor.draws": np.array([3, 9])}, synchronized),
    "synchronized": ({"actor.draws": np.array([3, 9])}, asynchronous),
    "asynchronous": ({"actor0.draws": np.array([5]), "actor1.draws": np.array([3, 9])}, synchronized),
}


@pytest.mark.parametrize("before", ANOTHER_SCHEDULE)
def test_other_groups_or_another_schedule_than_before_draw_no_number_again(before):
    state, make = ANOTHER_SCHEDULE[before]
    schedule = make()
    schedule.set_state(state, reset_seed=2)
    schedule.stop()
    actors = schedule.actors if make is asynchronous else [schedule.actor]
    assert all((actor.draws() == 9).all() for actor in actors)


@pytest.mark.parametrize("length", [N - 1, N + 2])
def test_segments_of_another_unroll_length_than_before_are_forgotten_and_the_games_go_on(length):
    before = synchronized()
    before.set_state({}, reset_seed=3)
    batches_of(before, range(1))
    assert before.actor.segments.length.any()
    actor = make_actor(length=length)
    resumed = Synchronized(actor)
    resumed.set_state(before.get_state(), reset_seed=99)
    np.testing.assert_array_equal(actor.step.observation, before.actor.step.observation)
    assert not actor.segments.length.any()
    batches_of(resumed, range(1, 4))
