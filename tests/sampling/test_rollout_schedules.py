"""The synchronized and the double-buffered schedule: which data, acted by whom, and where gradients are taken."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ddrl.sampling.actor_threads import ActorThreads
from ddrl.sampling.minibatches import Minibatches
from ddrl.sampling.rollout_schedules import DoubleBuffered, SynchronizedRollouts
from ddrl.types import Snapshot
from tests.sampling.counting import counted
from tests.sampling.test_rollouts import SIZE, make_actor, rollout

STEPS = 4
STEP_SIZE = np.float32(0.01)


def make_schedule(kind, groups=2, epochs=1, batch=STEPS * SIZE, shuffle=False, pause=0.0, refresh_every=0):
    ended, size = threading.Event(), SIZE // groups
    actor_threads = ActorThreads([make_actor(size, i * size, ended, pause=pause * i) for i in range(groups)], ended)
    minibatches = Minibatches(STEPS, 0.95, batch, epochs=epochs, shuffle=shuffle, seed=(3, 0))
    storages = [rollout(STEPS) for _ in range(1 + (kind is DoubleBuffered))]
    more = {"refresh_every": refresh_every} if refresh_every else {}
    schedule = kind(actor_threads, *storages, minibatches, ended, **more)
    schedule.set_state({}, reset_seed=1)
    return schedule


@pytest.mark.parametrize("kind", [SynchronizedRollouts, DoubleBuffered])
@pytest.mark.parametrize("other", [{"epochs": 1}, {"batch": STEPS * SIZE // 4}])
def test_a_rollout_that_is_cut_otherwise_after_a_resume_is_dropped(kind, other):
    """Its batches are no longer those that were taken; acting goes on with the next one."""
    settings = {"epochs": 4, "batch": STEPS * SIZE // 2}
    training = Training(make_schedule(kind, **settings))
    training.run(7)
    state = training.schedule.get_state()
    assert int(state["taken"]) == 7
    resumed = make_schedule(kind, **settings | other)
    resumed.set_state(state, reset_seed=2)
    assert resumed.minibatches.empty
    again = Training(resumed, training.parameters, training.version)
    again.run(3)
    same = make_schedule(kind, **settings)
    same.set_state(state, reset_seed=2)
    assert not same.minibatches.empty
    for schedule in (training.schedule, resumed, same):
        schedule.stop()


def gradient(point, batch):
    """Any function of parameters and data will do; it must depend on all of both."""
    data = float(np.sum(batch.advantage * (1.0 + batch.action)) + batch.return_.sum() * 0.1)
    return (np.asarray(point) * np.float32(0.3) + np.float32([data, -data])).astype(np.float32)


class Training:
    """Plain gradient descent on what a schedule gives: the exchange of a test."""

    def __init__(self, schedule, parameters=(0.5, 1.5), version=0):
        self.schedule, self.version = schedule, version
        self.parameters = np.array(parameters, np.float32)
        self.history = [self.parameters]
        self.batches = []

    def snapshot(self):
        return Snapshot(self.version, self.version, self.parameters)

    def update(self):
        self.schedule.update(self.snapshot())
        snapshot, batch = self.schedule.next_batch(self.snapshot)
        assert snapshot.version == snapshot.step == self.version
        self.batches.append((np.array(snapshot.parameters), type(batch)(*(array.copy() for array in batch))))
        self.parameters = self.parameters - STEP_SIZE * gradient(snapshot.parameters, batch)
        self.version += 1
        self.history.append(self.parameters)

    def run(self, updates):
        for _ in range(updates):
            self.update()
        return self


def test_synchronized_acts_with_the_parameters_of_its_first_gradient():
    training = Training(make_schedule(SynchronizedRollouts, epochs=2, batch=2 * SIZE)).run(8)
    for i, (point, batch) in enumerate(training.batches):
        np.testing.assert_array_equal(point, training.history[i])
        assert (batch.behaviour_version == i // 4 * 4).all()
    training.schedule.stop()


@pytest.mark.parametrize("kind", [SynchronizedRollouts, DoubleBuffered])
@pytest.mark.parametrize("at", [5, 8])
def test_the_target_is_what_acted_also_after_a_resume(kind, at):
    def targets(training, updates):
        for _ in range(updates):
            training.update()
            yield training.schedule.target_vector, training.batches[-1][1].behaviour_version

    settings = {"epochs": 2, "batch": 2 * SIZE}
    schedules = [make_schedule(kind, **settings) for _ in range(2)]
    for schedule in schedules:
        schedule.saves_target = True
    first = Training(schedules[0])
    seen = list(targets(first, at))
    resumed = Training(schedules[1], first.parameters, at)
    schedules[1].set_state(schedules[0].get_state(), reset_seed=1)
    seen += targets(resumed, 12 - at)
    history = [*first.history, *resumed.history[1:]]
    assert len({int(versions[0]) for _, versions in seen}) > 1
    for target, versions in seen:
        assert (versions == versions[0]).all()
        np.testing.assert_array_equal(target, history[versions[0]])
    for schedule in schedules:
        schedule.stop()


def test_synchronized_takes_newer_parameters_in_the_middle_where_it_may():
    schedule = make_schedule(SynchronizedRollouts, groups=1, refresh_every=2)
    receive = schedule.actor_threads.actors[0].receive

    def receive_and_update(snapshot):
        receive(snapshot)
        schedule.update(Snapshot(snapshot.version + 10, 0, snapshot.parameters))

    schedule.actor_threads.actors[0].receive = receive_and_update
    _, batch = schedule.next_batch(lambda: Snapshot(0, 0, np.ones(2, np.float32)))
    np.testing.assert_array_equal(batch.behaviour_version.reshape(STEPS, SIZE)[:, 0], [0, 0, 10, 10])


def test_the_first_gradient_is_taken_at_the_newest_parameters_that_acted():
    """Under the step that it is for; later gradients of the rollout are taken at those of their step."""
    schedule = make_schedule(SynchronizedRollouts, groups=1, batch=2 * SIZE, refresh_every=2)
    receive = schedule.actor_threads.actors[0].receive

    def receive_and_update(snapshot):
        receive(snapshot)
        schedule.update(Snapshot(snapshot.version + 10, 5, snapshot.parameters + np.float32(1.0)))

    schedule.actor_threads.actors[0].receive = receive_and_update
    first, _ = schedule.next_batch(lambda: Snapshot(0, 5, np.ones(2, np.float32)))
    assert (first.version, first.step) == (10, 5)
    np.testing.assert_array_equal(first.parameters, [2.0, 2.0])
    second, _ = schedule.next_batch(lambda: Snapshot(1, 6, np.full(2, 7.0, np.float32)))
    assert (second.version, second.step) == (1, 6)
    np.testing.assert_array_equal(second.parameters, [7.0, 7.0])


def test_the_delayed_gradient_is_equation_6():
    """One gradient per storage: taken at theta_(j-1), on data of theta_(j-1), applied to theta_j."""
    training = Training(make_schedule(DoubleBuffered)).run(7)
    np.testing.assert_array_equal(training.batches[0][0], training.history[0])  # theta_1 is theta_0
    for j in range(1, 7):
        point, batch = training.batches[j]
        np.testing.assert_array_equal(point, training.history[j - 1])
        assert (batch.behaviour_version == j - 1).all()
    training.schedule.stop()


def reference(updates, epochs, minibatches):
    """HTS-PPO one storage after the other: phi starts at theta_(j-1) and moves by the steps that theta makes."""
    theta = np.array([0.5, 1.5], np.float32)
    actor = make_actor(SIZE)
    history, points, behavior = [theta], [], theta
    storage = 0
    while len(points) < updates:
        out = rollout(STEPS)
        actor.fill(out, lambda b=behavior, s=storage: Snapshot(s, 0, b))
        storage += 1
        # `out` was filled with `behavior`; the newest parameters meanwhile became theta.
        phi, start = behavior, theta
        batches = Minibatches(STEPS, 0.95, STEPS * SIZE // minibatches, epochs=epochs, shuffle=True, seed=(3, 0))
        batches.start(out, storage)
        while not batches.empty:
            points.append(phi)
            theta = theta - STEP_SIZE * gradient(phi, batches.take())
            history.append(theta)
            phi = theta + (behavior - start)
        behavior = start
    return history[: updates + 1], points[:updates]


def test_two_epochs_of_two_minibatches_against_the_reference():
    training = Training(make_schedule(DoubleBuffered, epochs=2, batch=STEPS * SIZE // 2, shuffle=True)).run(20)
    history, points = reference(20, 2, 2)
    np.testing.assert_array_equal([p for p, _ in training.batches], points)
    np.testing.assert_array_equal(training.history, history)
    training.schedule.stop()


def test_a_slow_group_changes_nothing_but_the_time():
    """Storages change places only when one is full and the other is used up."""
    quick = Training(make_schedule(DoubleBuffered, groups=3, epochs=2, shuffle=True)).run(9)
    slow = Training(make_schedule(DoubleBuffered, groups=3, epochs=2, shuffle=True, pause=0.004)).run(9)
    np.testing.assert_array_equal(quick.history, slow.history)
    for training in (quick, slow):
        training.schedule.stop()


@pytest.mark.parametrize("kind", [SynchronizedRollouts, DoubleBuffered])
@pytest.mark.parametrize("groups", [1, 3])
def test_the_groups_do_not_change_a_bit(kind, groups):
    of_two_groups = Training(make_schedule(kind, groups=2, epochs=2, batch=2 * SIZE)).run(10)
    other = Training(make_schedule(kind, groups=groups, epochs=2, batch=2 * SIZE)).run(10)
    np.testing.assert_array_equal(of_two_groups.history, other.history)
    for training in (of_two_groups, other):
        training.schedule.stop()


@pytest.mark.parametrize("kind", [SynchronizedRollouts, DoubleBuffered])
@pytest.mark.parametrize("at", [0, 1, 4, 5, 6, 7, 8, 9])
def test_resume_equals_uninterrupted(kind, at):
    settings = {"epochs": 2, "batch": 2 * SIZE, "shuffle": True}
    whole = Training(make_schedule(kind, **settings)).run(16)
    first = Training(make_schedule(kind, **settings)).run(at)
    state = first.schedule.get_state()
    first.schedule.stop()
    resumed = Training(make_schedule(kind, **settings), first.parameters, at)
    resumed.schedule.set_state(state, reset_seed=1)
    resumed.run(16 - at)
    np.testing.assert_array_equal(resumed.history, whole.history[at:])
    for training in (whole, resumed):
        training.schedule.stop()


@pytest.mark.parametrize("kind", [SynchronizedRollouts, DoubleBuffered])
@pytest.mark.parametrize("at", [1, 6, 8])
def test_a_resume_counts_no_agent_step_twice(kind, at):
    """It fills the storage again that was being filled; nor does it count its frames and episodes twice."""
    settings = {"epochs": 2, "batch": 2 * SIZE}
    whole = Training(make_schedule(kind, **settings)).run(16)
    first = Training(make_schedule(kind, **settings)).run(at)
    state = {name: array.copy() for name, array in first.schedule.get_state().items()}
    first.schedule.actor_threads.wait()
    before = counted(first.schedule)
    resumed = Training(make_schedule(kind, **settings), first.parameters, at)
    resumed.schedule.set_state(state, reset_seed=1)
    resumed.run(16 - at)
    after, expected = counted(resumed.schedule, before), counted(whole.schedule)
    for name in ("agent_steps", "frames"):
        assert after["totals"][name] == expected["totals"][name] > before["totals"][name]
    assert after["episodes"] == expected["episodes"] > before["episodes"]
    for training in (whole, first, resumed):
        training.schedule.stop()


@pytest.mark.parametrize("kind", [SynchronizedRollouts, DoubleBuffered])
def test_a_stopped_schedule_gives_no_batch(kind):
    schedule = make_schedule(kind)
    Training(schedule).run(2)
    schedule.stop()
    assert schedule.next_batch(lambda: Snapshot(2, 2, np.ones(2, np.float32))) is None
    assert schedule.next_batch(lambda: None) is None


@pytest.mark.parametrize("kind", [SynchronizedRollouts, DoubleBuffered])
def test_what_breaks_in_a_group_is_raised(kind):
    schedule = make_schedule(kind)
    Training(schedule).run(1)
    schedule.actor_threads.actors[1].environment.send = None
    with pytest.raises(TypeError):
        Training(schedule, version=1).run(3)
    schedule.stop()
