"""The learner's schedule: targets, target network, batches given back."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ddrl.apex.remote_replay import Drawn, RemoteReplay
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.types import Replayed, Snapshot


def batch(number, rows=3):
    column = np.full(rows, number, np.float32)
    return Replayed(
        column,
        column.astype(np.int32),
        column,
        column,
        column,
        column,
        column.astype(np.int64),
        column.astype(np.int64),
    )


def schedule_of(every=2):
    woken = []
    schedule = RemoteReplay(
        lambda parameters, replayed: 100.0 * parameters + replayed.reward,
        every,
        RankMetrics("learner", 0),
        lambda: woken.append(1),
    )
    return schedule, woken


def put(schedule, *numbers):
    for number in numbers:
        schedule.put(Drawn(0, batch(number), np.zeros(1)))


def test_targets_are_those_of_the_last_copy():
    schedule, woken = schedule_of(every=2)
    put(schedule, *range(6))
    taken = []
    for version in range(6):
        snapshot, learned = schedule.next_batch(lambda: Snapshot(version, version, float(version)))
        taken.append((snapshot.version, float(learned.target[0])))
    # theta^- is replaced with the parameters of versions 2 and 4, and counts from the gradients at these on.
    assert taken == [(0, 0.0), (1, 1.0), (2, 202.0), (3, 203.0), (4, 404.0), (5, 405.0)]
    assert len(woken) == 6


def test_a_refused_step_does_not_copy_the_parameters_early():
    schedule, _ = schedule_of(every=2)
    put(schedule, *range(4))
    targets = []
    for step, version in enumerate((0, 1, 1, 2)):  # the second gradient at version 1 repeats a step that was refused
        _, learned = schedule.next_batch(lambda: Snapshot(version, step, float(version)))
        targets.append(float(learned.target[0]))
    assert targets == [0.0, 1.0, 2.0, 203.0]


def test_targets_wait_for_the_newest_parameters_only_where_a_copy_is_due():
    schedule, _ = schedule_of(every=2)
    order = []
    schedule._targets = lambda parameters, replayed: order.append("targets") or replayed.reward
    put(schedule, *range(4))
    for version in range(4):
        schedule.next_batch(lambda: order.append("parameters") or Snapshot(version, version, 0.0))
    late, early = ["parameters", "targets"], ["targets", "parameters"]
    assert order == [*late, *early, *late, *early]


def test_a_batch_comes_back_with_its_priorities_once_the_next_is_wanted():
    schedule, _ = schedule_of()
    put(schedule, 1, 2, 3)
    newest = lambda: Snapshot(0, 0, 0.0)
    _, first = schedule.next_batch(newest)
    schedule.learned(first, np.array([5.0]))
    assert schedule.used() == [] and schedule.ready == 2
    schedule.next_batch(newest)  # whose gradient is not finite: no priorities
    (learned,) = schedule.used()
    assert learned.drawn.batch.reward[0] == 1 and learned.priorities[0] == 5.0
    schedule.next_batch(newest)
    (learned,) = schedule.used()
    assert learned.drawn.batch.reward[0] == 2 and learned.priorities is None


def test_the_target_network_comes_back_from_a_checkpoint():
    schedule, _ = schedule_of()
    assert schedule.get_state() == {}
    with pytest.raises(RuntimeError, match="RemoteReplay has no parameters of target networks"):
        assert schedule.target_vector
    put(schedule, 1)
    schedule.next_batch(lambda: Snapshot(7, 7, np.float32(3.0)))
    other, _ = schedule_of()
    other.set_state(schedule.get_state(), 1)
    assert other.target.version == 7 and other.target_vector == 3.0
    put(other, 1, 1)
    assert other.next_batch(lambda: Snapshot(8, 8, np.float32(4.0)))[1].target[0] == 301.0
    assert other.next_batch(lambda: Snapshot(9, 9, np.float32(5.0)))[1].target[0] == 501.0


def test_a_copy_that_is_due_with_the_first_batch_after_a_resume_is_made():
    schedule, _ = schedule_of(every=2)
    schedule.set_state({"target.version": np.int64(6), "target.vector": np.float32(3.0)}, 1)
    put(schedule, 1)
    assert schedule.next_batch(lambda: Snapshot(8, 8, np.float32(4.0)))[1].target[0] == 401.0


def test_it_says_that_it_waits_and_ends_when_it_is_stopped():
    schedule, _ = schedule_of()
    taken = []
    thread = threading.Thread(target=lambda: taken.append(schedule.next_batch(lambda: None)))
    thread.start()
    while not schedule.waiting:
        thread.join(timeout=0.01)
    schedule.stop()
    thread.join(timeout=60.0)
    assert taken == [None]
