"""Schedules that learn from a replay: who acts with what, when the replay changes, what a resume keeps."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from ddrl.ops.draws import epsilon_greedy
from ddrl.sampling.replay_schedules import Concurrent, Standard
from ddrl.types import Snapshot
from tests.sampling.counting import counted, policy
from tests.sampling.replaying import (
    MINIMUM,
    PERIODS,
    ROWS,
    UPDATES,
    Training,
    assert_equal,
    content,
    make_batches,
    make_replay,
    make_schedule,
)
from tests.sampling.test_rollouts import SIZE, make_actor, rollout

KINDS = pytest.mark.parametrize("kind", [Standard, Concurrent])
PREFILL = -(-MINIMUM // SIZE)  # rows


def trained(kind, updates=None, **options):
    """A training of more than two copies to the target network, stopped."""
    training = Training(make_schedule(kind, **options)).run(updates or 2 * PERIODS * UPDATES[Standard] + 5)
    training.schedule.stop()
    return training


def acted(training):
    """The unrolls after the prefill, and the update before which the replay got each."""
    rows, out = 0, []
    for update, unroll in training.added:
        if rows >= PREFILL:
            out.append((update, unroll))
        rows += len(unroll.reward)
    return out


@KINDS
def test_the_prefill_is_the_minimum_of_agent_steps_up_to_a_whole_row(kind):
    training = trained(kind, 1)
    rows = [len(unroll.reward) for _, unroll in training.added]
    whole = PREFILL // ROWS[kind]
    expected = [ROWS[kind]] * whole + [PREFILL % ROWS[kind]] * (PREFILL % ROWS[kind] > 0)
    assert rows == expected + ([ROWS[Standard]] if kind is Standard else [])
    assert all((unroll.behaviour_version == 0).all() for _, unroll in training.added)


@KINDS
def test_a_minimum_of_the_whole_capacity_ends_although_ended_episodes_take_room(kind):
    schedule = make_schedule(kind, minimum=40 * SIZE)
    Training(schedule).run(1)
    assert schedule.replay.size < 40 * SIZE
    schedule.stop()


def test_standard_acts_with_the_newest_parameters_of_each_period():
    training = trained(Standard)
    for period, (update, unroll) in enumerate(acted(training)):
        assert update == period * UPDATES[Standard]
        assert (unroll.behaviour_version == update).all()
        state, value = unroll.observation[0], unroll.value[0]
        np.testing.assert_array_equal(value, policy(training.history[update], state)[1])


def test_standard_copies_to_the_target_network_every_so_many_agent_steps():
    training = trained(Standard)
    every = PERIODS * UPDATES[Standard]
    for update, target in enumerate(training.thetas):
        assert target.version == update // every * every
        np.testing.assert_array_equal(target.parameters, training.history[target.version])


def test_standard_updates_as_often_as_it_acts():
    training = trained(Standard)
    steps = np.array([update for update, _ in acted(training)])
    assert len(steps) == -(-len(training.batches) // UPDATES[Standard])
    np.testing.assert_array_equal(steps, np.arange(len(steps)) * UPDATES[Standard])
    assert all(len(unroll.reward) == ROWS[Standard] for _, unroll in acted(training))


def test_concurrent_acts_with_the_target_parameters():
    training = trained(Concurrent)
    assert len(acted(training)) >= 2
    for period, (update, unroll) in enumerate(acted(training)):
        start = period * UPDATES[Concurrent]
        assert update == start + UPDATES[Concurrent], "the buffer comes into the replay at the period's end"
        assert (unroll.behaviour_version == start).all()
        for t in range(ROWS[Concurrent]):
            np.testing.assert_array_equal(unroll.value[t], policy(training.history[start], unroll.observation[t])[1])


@pytest.mark.parametrize("groups", [1, 3])
def test_concurrent_steps_each_group_in_one_thread_from_the_prefill_on(groups):
    """`--pin-simulators` pins the first thread that steps a group."""
    schedule, seen = make_schedule(Concurrent, groups=groups), set()
    for i, actor in enumerate(schedule.actor_threads.actors):
        receive = actor.environment.recv
        actor.environment.recv = lambda i=i, receive=receive: (
            seen.add((i, threading.current_thread().name)),
            receive(),
        )[1]
    Training(schedule).run(UPDATES[Concurrent] + 1)
    schedule.stop()
    assert seen == {(i, f"simulators-{i}") for i in range(groups)}


@KINDS
def test_importance_counts_the_updates_of_other_workers(kind):
    """Each version of this worker is followed by three of others."""
    schedule, asked, every = make_schedule(kind), set(), 4 * UPDATES[kind]
    schedule.batches._importance = lambda updates: asked.add(updates) or 0.4
    for version in range(0, 3 * every, 4):
        schedule.next_batch(lambda version=version: Snapshot(version, version, np.float32([0.5, 1.5])))
    schedule.stop()
    assert asked == {0, every, 2 * every}


@pytest.mark.parametrize("pause", [0.0, 0.004])
def test_concurrent_changes_target_and_replay_at_the_end_of_a_period_only(pause):
    """Whether acting or learning is done first."""
    training = trained(Concurrent, pause=pause, groups=2)
    every = UPDATES[Concurrent]
    for update, (target, held) in enumerate(zip(training.thetas, training.contents, strict=True)):
        assert target.version == update // every * every
        np.testing.assert_array_equal(target.parameters, training.history[target.version])
        if update:
            assert (held == training.contents[update - 1]) == (update % every > 0)
    calls = training.schedule.batches._targets.calls
    for i, (parameters, _) in enumerate(calls):
        np.testing.assert_array_equal(parameters, training.history[i // 3 * every])  # 4 + 4 + 2 minibatches a period


def replays_of_periods(history, periods):
    """A replay for the minibatches of each period: the prefill, and what an actor by itself acts in earlier periods."""
    draw = epsilon_greedy(lambda ids, counts: np.where(counts < MINIMUM / SIZE, 1.0, 0.3))
    actor, replay = make_actor(SIZE, draw=draw, last_value=False), make_replay()
    for period in range(periods):
        start = max(0, period - 1) * UPDATES[Concurrent]
        buffer = rollout(ROWS[Concurrent] if period else PREFILL)
        actor.fill(buffer, lambda start=start: Snapshot(start, start, history[start]))
        replay.add(buffer)
        yield replay


@pytest.mark.parametrize("options", [{}, {"pause": 0.004}, {"groups": 3}])
def test_the_buffer_becomes_visible_at_the_end_of_its_period(options):
    """What is acted in a period is in the replay for the minibatches of the next one, and not for its own."""
    periods, every = 5, UPDATES[Concurrent]
    training = trained(Concurrent, periods * every, exponent=0.0, **options)
    sizes = []
    for period, replay in enumerate(replays_of_periods(training.history, periods)):
        updates = slice(period * every, (period + 1) * every)
        assert [held[0] for held in training.contents[updates]] == [replay.size] * every, period
        assert set(training.contents[updates]) == {content(replay)}, period
        batches = make_batches(replay, ahead=4)
        batches.start(period + 1, training.thetas[period * every], period * every)
        for batch in training.batches[updates]:
            assert_equal([batch], [batches.take()])
        batches.close()
        newest = max(batch.behaviour_version.max() for batch in training.batches[updates])
        assert newest == max(0, period - 1) * every, "nothing was drawn of what was acted last"
        sizes.append(replay.size)
    assert (np.diff(sizes) > 0).all()


def test_concurrent_learns_from_the_prefill_in_its_first_period():
    training = Training(make_schedule(Concurrent)).run(UPDATES[Concurrent])
    assert sum(len(unroll.reward) for _, unroll in training.added) == PREFILL
    training.schedule.stop()


@KINDS
def test_the_random_actions_are_those_of_the_prefill(kind):
    """An actor's own count of draws and the schedule agree on where it ends."""
    rows = np.concatenate([unroll.behaviour_log_prob for _, unroll in trained(kind).added])
    np.testing.assert_array_equal(rows[:PREFILL], np.log(np.float32(0.5)))
    np.testing.assert_allclose(np.unique(np.exp(rows[PREFILL:])), [0.15, 0.85], rtol=1e-6)


@KINDS
@pytest.mark.parametrize("options", [{"groups": 2}, {"groups": SIZE}, {"groups": 3, "pause": 0.002}, {"ahead": 1}])
def test_groups_and_time_and_what_is_drawn_ahead_change_no_bit(kind, options):
    training, other = trained(kind), trained(kind, **options)
    np.testing.assert_array_equal(training.history, other.history)
    assert_equal(training.batches, other.batches)
    assert training.contents == other.contents
    assert [len(unroll.reward) for _, unroll in training.added] == [len(unroll.reward) for _, unroll in other.added]


@KINDS
def test_priorities_change_what_is_drawn_from_the_next_period_on(kind):
    plain, prioritized = trained(kind, exponent=0.0), trained(kind)
    keys = [np.array([batch.key for batch in training.batches]) for training in (plain, prioritized)]
    assert (keys[0] != keys[1]).mean() > 0.8
    largest, mute = trained(kind), make_schedule(kind)
    mute.batches.learned = lambda batch, priorities: None
    silent = Training(mute).run(len(largest.batches))
    mute.stop()
    same = [(a.key == b.key).all() for a, b in zip(largest.batches, silent.batches, strict=True)]
    assert all(same[: UPDATES[kind]]) and not any(same[UPDATES[kind] :])


@KINDS
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"exponent": 0.0}])
@pytest.mark.parametrize("at", [0, 1, 9, 10, 13, 21])
def test_resume_equals_uninterrupted(kind, at, options, tmp_path):
    """In the middle of a period, at its first and last minibatch, and between two."""
    whole = trained(kind, 34, **options)
    first = Training(make_schedule(kind, tmp_path, **options)).run(at)
    state = {name: array.copy() for name, array in first.schedule.get_state().items()}
    first.schedule.stop()
    resumed = Training(make_schedule(kind, tmp_path, **options), first.parameters, at)
    resumed.schedule.set_state(state, reset_seed=1)
    if at:
        assert content(resumed.schedule.replay) == content(first.schedule.replay)
    resumed.run(34 - at)
    resumed.schedule.stop()
    np.testing.assert_array_equal(resumed.history, whole.history[at:])
    assert_equal(resumed.batches, whole.batches[at:])
    assert resumed.contents == whole.contents[at:]
    for target, expected in zip(resumed.thetas, whole.thetas[at:], strict=True):
        assert target.version == expected.version and (target.parameters == expected.parameters).all()


@KINDS
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("at", [1, 13, 20])
def test_a_resume_counts_no_agent_step_twice(kind, groups, at, tmp_path):
    """It acts those again that were acted since the period began; nor does it count their frames and episodes twice."""
    whole = trained(kind, 34, groups=groups)
    first = Training(make_schedule(kind, tmp_path, groups=groups)).run(at)
    state = {name: array.copy() for name, array in first.schedule.get_state().items()}
    first.schedule.actor_threads.wait()
    before = counted(first.schedule)
    first.schedule.stop()
    resumed = Training(make_schedule(kind, tmp_path, groups=groups), first.parameters, at)
    resumed.schedule.set_state(state, reset_seed=1)
    resumed.run(34 - at)
    resumed.schedule.stop()
    after, expected = counted(resumed.schedule, before), counted(whole.schedule)
    for name in ("agent_steps", "frames"):
        assert after["totals"][name] == expected["totals"][name] > before["totals"][name]
    assert after["episodes"] == expected["episodes"] > before["episodes"]
    assert groups > 1 or after["scores"] == expected["scores"]


@KINDS
def test_a_run_may_be_resumed_again_and_again(kind, tmp_path):
    whole = trained(kind, 30)
    parameters, version, state = (0.5, 1.5), 0, {}
    for updates in (4, 9, 1, 7, 9):
        part = Training(make_schedule(kind, tmp_path), parameters, version)
        part.schedule.set_state(state, reset_seed=1)
        part.run(updates)
        parameters, version, state = part.parameters, part.version, part.schedule.get_state()
        part.schedule.stop()
    np.testing.assert_array_equal(parameters, whole.history[-1])


@KINDS
@pytest.mark.parametrize("at", [1, 14, 20])
def test_environments_that_cannot_be_saved_are_reset_and_the_replay_is_kept(kind, at, tmp_path):
    whole = trained(kind, 34)
    first = Training(make_schedule(kind, tmp_path, saves=False)).run(at)
    np.testing.assert_array_equal(first.history, whole.history[: at + 1])
    state = first.schedule.get_state()
    first.schedule.stop()
    resumed = Training(make_schedule(kind, tmp_path, saves=False), first.parameters, at)
    resumed.schedule.set_state(state, reset_seed=99)
    assert content(resumed.schedule.replay) == content(first.schedule.replay)
    left = -at % UPDATES[kind]  # minibatches of the period under way
    resumed.run(34 - at)
    resumed.schedule.stop()
    assert_equal(resumed.batches[:left], whole.batches[at : at + left])
    new = resumed.added[0][1]
    assert resumed.added[0][0] == at + left and (new.observation[0, :, :2] == 0).all(), "no reset was seen"
    target = resumed.thetas[-1]
    np.testing.assert_array_equal(target.parameters, (first.history[:-1] + resumed.history)[target.version])
    resumed.schedule.replay.check()


@KINDS
def test_another_schedule_goes_on_with_the_replay(kind, tmp_path):
    other = Standard if kind is Concurrent else Concurrent
    first = Training(make_schedule(kind, tmp_path)).run(8)
    state = first.schedule.get_state()
    first.schedule.stop()
    resumed = Training(make_schedule(other, tmp_path), first.parameters, 8)
    resumed.schedule.set_state(state, reset_seed=1)
    assert content(resumed.schedule.replay) == content(first.schedule.replay)
    resumed.run(25)
    resumed.schedule.stop()
    assert len(resumed.added) >= 2


@KINDS
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("updates", [0, 2])
def test_stop_ends_all_threads_also_during_the_prefill(kind, groups, updates):
    """With steps so slow that a prefill would take two minutes."""
    before = set(threading.enumerate())
    schedule = make_schedule(kind, groups=groups, minimum=400 * SIZE)
    training = Training(schedule).run(updates)
    for actor in schedule.actor_threads.actors:
        actor.environment.pause = 0.3
    answers = []

    def learn():
        while (answer := schedule.next_batch(training.snapshot)) is not None:
            answers.append(answer)
        answers.append(None)

    trainer = threading.Thread(target=learn, daemon=True)
    trainer.start()
    time.sleep(0.1)
    schedule.stop()
    trainer.join(timeout=60.0)
    assert not trainer.is_alive() and answers[-1] is None
    for thread in set(threading.enumerate()) - before:  # the machine may pause for longer than a stop waits
        thread.join(60.0)
    assert set(threading.enumerate()) <= before
    assert schedule.next_batch(lambda: Snapshot(9, 9, np.ones(2, np.float32))) is None


@KINDS
def test_nothing_of_the_time_before_the_first_period_is_saved(kind, tmp_path):
    schedule = make_schedule(kind, tmp_path)
    assert schedule.get_state() == {} and not list(tmp_path.iterdir())
    schedule.stop()


def test_no_state_is_given_in_the_middle_of_acting(tmp_path):
    schedule, states = make_schedule(Standard, tmp_path), []
    environment = schedule.actor_threads.actors[0].environment
    receive = environment.recv
    environment.recv = lambda: (states.append(schedule.get_state()), receive())[1]
    Training(schedule).run(UPDATES[Standard] + 1)
    assert states and all(state == {} for state in states)
    schedule.stop()


def hold(schedule):
    """From now on a step lasts until the schedule is stopped."""
    for actor in schedule.actor_threads.actors:
        receive = actor.environment.recv
        actor.environment.recv = lambda receive=receive: (schedule._ended.wait(60.0), receive())[1]


@KINDS
@pytest.mark.parametrize("groups", [1, 3])
def test_acting_that_the_end_breaks_off_leaves_a_replay_that_can_be_saved(kind, groups, tmp_path):
    schedule = make_schedule(kind, tmp_path, groups=groups, exponent=0.0)
    training = Training(schedule).run(UPDATES[kind])
    schedule.actor_threads.wait()
    if kind is Concurrent:  # which acts for the next period while it learns
        hold(schedule)
    training.run(UPDATES[kind])
    if kind is Standard:
        hold(schedule)
    held = content(schedule.replay)
    trainer = threading.Thread(target=lambda: schedule.next_batch(training.snapshot), daemon=True)
    trainer.start()
    while not schedule._busy.locked():
        time.sleep(0.001)
    assert schedule.get_state() == {}, "it is acting"
    schedule.stop()
    trainer.join(timeout=60.0)
    state = schedule.get_state()
    assert ("actor0.step.env_id" in state) == (kind is Concurrent), "that of the period's beginning"
    again = make_schedule(kind, tmp_path, groups=groups, exponent=0.0)
    resumed = Training(again, training.parameters, training.version)
    resumed.schedule.set_state(state, reset_seed=1)
    assert content(resumed.schedule.replay) == held and resumed.schedule.period == 2
    resumed.run(2 * UPDATES[kind])
    assert resumed.schedule.period == 4
    resumed.schedule.replay.check()
    resumed.schedule.stop()


def test_nothing_is_saved_of_a_prefill_that_the_end_breaks_off(tmp_path):
    schedule = make_schedule(Standard, tmp_path)
    (actor,) = schedule.actor_threads.actors
    receive = actor.environment.recv
    actor.environment.recv = lambda: (schedule._ended.set(), receive())[1]
    assert schedule.next_batch(Training(schedule).snapshot) is None
    assert schedule.get_state() == {} and not list(tmp_path.iterdir())
    schedule.stop()


def test_saving_a_replay_tells_again_and_again_that_it_works(tmp_path):
    schedule, beats = make_schedule(Standard, tmp_path), []
    schedule.working = lambda: beats.append(None)
    Training(schedule).run(1)
    schedule.get_state()
    assert len(beats) >= 2, "with each file"
    schedule.stop()


@KINDS
def test_what_breaks_in_a_group_is_raised(kind):
    schedule = make_schedule(kind, groups=2)
    training = Training(schedule).run(1)
    schedule.actor_threads.actors[1].environment.send = None
    with pytest.raises(TypeError):
        training.run(3 * UPDATES[kind])
    schedule.stop()


def test_steps_that_are_not_finite_are_kept_out_counted_and_named_once():
    schedule = make_schedule(Standard)
    training = Training(schedule).run(7)
    buffer = rollout(ROWS[Standard])
    buffer.valid[:] = 1.0
    buffer.valid[1, 4], buffer.observation[2, 4] = 0.0, np.nan  # a reset leads to it, which is no transition
    for _ in range(2):
        buffer.reward[1, 2] = np.nan
        schedule._store(buffer)
    training.run(20)
    assert all(np.isfinite(batch.target).all() for batch in training.batches)
    report = schedule.metrics.report()
    assert report["counters"]["transitions_left_out"] == 2
    (event,) = report["events"]
    assert event["name"] == "transitions_left_out" and "the reward of simulator 2 at its step" in event["text"]
