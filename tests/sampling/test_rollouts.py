"""Rollouts against one step after the other, groups against each other, minibatches against their rollout."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ddrl.ops.draws import draw_actions, uniforms
from ddrl.ops.returns import generalized_advantages
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor_threads import ActorThreads
from ddrl.sampling.minibatches import Minibatches, normalized, transitions_of
from ddrl.sampling.rollouts import Ended, RolloutActor, UnrollActor, UnrollBatcher, columns, empty_unroll, time_slice
from ddrl.types import Discrete, Snapshot
from tests.sampling.counting import Counting, policy

STEPS, SIZE, DISCOUNT = 12, 6, 0.9


def snapshot(version, step=0):
    return Snapshot(version, step, np.array([0.1 * version, 1.0 + version], np.float32))


def rollout(steps=STEPS, size=SIZE):
    return empty_unroll(steps, size, (3,), np.float32, Discrete(2))


def always(version):
    """The same discount."""
    return DISCOUNT


def make_actor(
    size, first=0, ended=None, life_loss_terminal=False, pause=0.0, kind=RolloutActor, discount=always, **more
):
    actor = kind(
        Counting(size, first, pause),
        policy,
        RankMetrics("worker", 0),
        first_id=first,
        seed=7,
        discount=discount,
        transform_reward=lambda r: np.clip(r, -1, 1).astype(np.float32),
        life_loss_terminal=life_loss_terminal,
        ended=ended or threading.Event(),
        **more,
    )
    actor.reset(1)
    return actor


def test_a_rollout_is_what_its_environments_and_its_policy_say():
    out = rollout()
    make_actor(SIZE).fill(out, lambda: snapshot(3))
    env, draws = Counting(SIZE), np.zeros(SIZE, np.int64)
    env.reset(1)
    step = env.recv()
    for t in range(STEPS):
        logits, value = policy(snapshot(3).parameters, step.observation)
        action, log_prob = draw_actions(logits, uniforms(7, np.arange(SIZE), draws))
        draws += 1
        env.send(action)
        after = env.recv()
        for name, expected in {
            "observation": step.observation,
            "value": value,
            "action": action,
            "behaviour_log_prob": log_prob,
            "reward": np.clip(after.reward, -1, 1),
            "valid": after.valid,
            "behaviour_version": np.full(SIZE, 3),
            "discount": np.where(after.valid & ~after.terminated, DISCOUNT, 0.0),
            "continues": after.valid & ~after.terminated & ~after.truncated,
        }.items():
            np.testing.assert_array_equal(getattr(out, name)[t], expected.astype(getattr(out, name).dtype), name)
        step = after
    np.testing.assert_array_equal(out.observation[STEPS], step.observation)
    np.testing.assert_array_equal(out.value[STEPS], policy(snapshot(3).parameters, step.observation)[1])
    assert (out.valid == 0).any() and ((out.discount > 0) & (out.continues == 0)).any(), "no truncation was met"


def test_the_next_rollout_begins_where_the_last_ended_with_newer_parameters():
    actor, first, second = make_actor(SIZE), rollout(), rollout()
    actor.fill(first, lambda: snapshot(0))
    actor.fill(second, lambda: snapshot(1))
    np.testing.assert_array_equal(second.observation[0], first.observation[STEPS])
    assert (second.value[0] != first.value[STEPS]).all() and (second.behaviour_version == 1).all()


def test_the_discount_is_that_of_the_version_that_acts():
    actor, out, versions = make_actor(SIZE, discount=lambda version: 0.5 + 0.1 * version), rollout(), iter(range(9))
    actor.fill(out, lambda: snapshot(next(versions)), refresh_every=5)
    of_versions = np.where(out.discount > 0, np.float32(0.5 + 0.1 * out.behaviour_version), 0.0)
    np.testing.assert_array_equal(out.discount, of_versions)
    assert set(out.discount.ravel()) == {0.0, np.float32(0.5), np.float32(0.6), np.float32(0.7)}


def test_refreshed_parameters_act_from_their_step_on():
    actor, out, versions = make_actor(SIZE), rollout(), iter(range(9))
    actor.fill(out, lambda: snapshot(next(versions)), refresh_every=5)
    np.testing.assert_array_equal(out.behaviour_version[:, 0], [0] * 5 + [1] * 5 + [2] * 2)


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_groups_in_threads_fill_what_one_group_fills(groups):
    """Alternating equals non-alternating: a simulator's actions depend on nothing but itself."""
    alone, in_threads, ended = rollout(), rollout(), threading.Event()
    make_actor(SIZE).fill(alone, lambda: snapshot(2))
    size = SIZE // groups
    actor_threads = ActorThreads([make_actor(size, i * size, ended, pause=0.001 * i) for i in range(groups)], ended)
    actor_threads.fill(in_threads, lambda: snapshot(2))
    ended.set()
    actor_threads.join()
    for name in alone._fields:
        np.testing.assert_array_equal(getattr(alone, name), getattr(in_threads, name), name)


def test_more_groups_than_before_explore_on_from_where_the_furthest_simulator_was():
    ended = threading.Event()
    before = ActorThreads([make_actor(SIZE, 0, ended)], ended)
    before.fill(rollout(), lambda: snapshot(0))
    state = before.get_state()
    after = ActorThreads([make_actor(SIZE // 2, i * SIZE // 2, ended) for i in range(2)], ended)
    assert not after.set_state(state), "the environments begin anew"
    drawn = int(state["actor0.draws"].max())
    assert drawn > 0 and all((actor._draws == drawn).all() for actor in after.actors)
    ended.set()
    before.join()
    after.join()


def test_fewer_groups_than_before_explore_on_from_where_the_furthest_simulator_was():
    """Acting that the end broke off leaves groups at different counts."""
    ended = threading.Event()
    after = ActorThreads([make_actor(SIZE, 0, ended)], ended)
    state = {f"actor{i}.draws": np.full(SIZE // 2, drawn) for i, drawn in enumerate((5, 9))}
    assert not after.set_state(state) and (after.actors[0].draws() == 9).all()


def test_an_actor_that_has_received_nothing_says_so_also_after_a_reset():
    actor = make_actor(SIZE)
    with pytest.raises(RuntimeError, match="call receive first"):
        actor.act()
    actor.receive(snapshot(0))
    assert actor.received and len(actor.step.env_id) == SIZE
    actor.reset(1)
    assert not actor.received
    with pytest.raises(RuntimeError, match="call receive first"):
        actor.infer(snapshot(0))


def test_actor_threads_say_what_broke_and_end_when_they_are_told():
    ended = threading.Event()
    actors = [make_actor(3, 0, ended), make_actor(3, 3, ended)]
    actors[1].environment.send = None
    actor_threads = ActorThreads(actors, ended)
    with pytest.raises(TypeError):
        actor_threads.fill(rollout(), lambda: snapshot(0))
    ended.set()
    with pytest.raises(Ended):
        make_actor(3, 0, ended).fill(rollout(size=3), lambda: snapshot(0))
    actor_threads.join()
    assert not any(thread.is_alive() for thread in actor_threads._threads)


def test_unrolls_of_groups_make_batches_of_whole_unrolls():
    batcher = UnrollBatcher(SIZE)
    make = lambda: rollout(steps=4, size=3)
    actors = [make_actor(3, i * 3, kind=UnrollActor, batcher=batcher, make_unroll=make) for i in range(2)]
    assert actors[0].advance(lambda: snapshot(0)) == []
    (batch,) = actors[1].advance(lambda: snapshot(1))
    assert batch.observation.shape == (5, SIZE, 3) and batch.reward.shape == (4, SIZE)
    np.testing.assert_array_equal(batch.behaviour_version[0], [0, 0, 0, 1, 1, 1])


def filled(steps=STEPS):
    out = rollout(steps)
    make_actor(SIZE).fill(out, lambda: snapshot(1))
    return out


def test_advantages_reach_to_the_end_of_their_unroll():
    out = filled()
    points = transitions_of(out, 4, 0.95)
    for start in (0, 4, 8):
        part = time_slice(out, start, start + 4)
        advantage, return_ = generalized_advantages(
            part.reward, part.discount, part.continues, part.valid, part.value, 0.95
        )
        rows = slice(start * SIZE, (start + 4) * SIZE)
        np.testing.assert_array_equal(points.advantage[rows], advantage.ravel())
        np.testing.assert_array_equal(points.return_[rows], return_.ravel())
    np.testing.assert_array_equal(points.observation.reshape(STEPS, SIZE, 3), out.observation[:STEPS])
    np.testing.assert_array_equal(points.weight, out.valid.ravel())


def test_unshuffled_batches_are_steps_in_their_order_and_views():
    out, minibatches = filled(), Minibatches(4, 1.0, 4 * SIZE)
    minibatches.start(out, 1)
    batches = [minibatches.take() for _ in range(3)]
    assert minibatches.empty
    np.testing.assert_array_equal(np.concatenate([b.action for b in batches]), out.action.ravel())
    assert np.shares_memory(batches[1].observation, out.observation)


def test_every_epoch_has_every_transition_once_in_an_order_of_its_own():
    out = filled()
    orders = []
    for number in (1, 1, 2):
        minibatches = Minibatches(4, 0.9, 18, epochs=2, shuffle=True, seed=(5, 0))
        minibatches.start(out, number)
        batches = [minibatches.take() for _ in range(2 * STEPS * SIZE // 18)]
        assert minibatches.empty
        orders.append(np.concatenate([b.observation for b in batches]))
    np.testing.assert_array_equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).any()
    half = STEPS * SIZE
    rows = np.sort(out.observation[:STEPS].reshape(half, 3), axis=0)
    for epoch in (orders[0][:half], orders[0][half:]):
        np.testing.assert_array_equal(np.sort(epoch, axis=0), rows)
    assert (orders[0][:half] != orders[0][half:]).any()


def test_taken_batches_are_skipped_after_a_resume():
    out = filled()
    whole, resumed = (Minibatches(4, 0.9, 18, epochs=2, shuffle=True, seed=(5, 0)) for _ in range(2))
    whole.start(out, 3)
    for _ in range(5):
        whole.take()
    resumed.start(out, 3, taken=5)
    while not whole.empty:
        np.testing.assert_array_equal(whole.take().observation, resumed.take().observation)
    assert resumed.empty


def test_normalized_advantages_count_valid_rows_only():
    advantage, weight = np.array([1.0, 2.0, 6.0, 100.0], np.float32), np.array([1, 1, 1, 0], np.float32)
    normal = normalized(advantage, weight)[:3]
    assert normal.mean() == pytest.approx(0.0, abs=1e-6) and normal.std() == pytest.approx(1.0, rel=1e-5)
    assert normal.dtype == np.float32
    np.testing.assert_array_equal(normalized(np.full(3, 2.0, np.float32), np.ones(3, np.float32)), np.zeros(3))


def test_columns_are_views():
    out = rollout()
    columns(out, 2, 4).reward[:] = 1.0
    np.testing.assert_array_equal(out.reward.sum(axis=0), [0, 0, STEPS, STEPS, 0, 0])


def test_steps_between_two_episodes_do_not_count_as_agent_steps():
    actor, out = make_actor(SIZE, frames_per_step=4.0), rollout()
    actor.fill(out, lambda: snapshot(0))
    counters = actor.metrics.report()["counters"]
    assert out.valid.sum() < out.valid.size
    assert (counters["agent_steps"], counters["frames"]) == (out.valid.sum(), 4.0 * out.valid.sum())
