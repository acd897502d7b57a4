"""The native Atari environment: masks, raw scores, caps, seeds, and pixels equal to the Gymnasium path."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.atari_native import NativeAtari
from ddrl.envs.gymnasium_path import make_atari
from ddrl.envs.protocols import BA3C, MACHADO18, NATURE
from ddrl.errors import UsageError
from tests.envs.driving import assert_same, by_environment, drive


@pytest.mark.parametrize(
    ("rom", "changes"),
    [("breakout", {}), ("pong", {"fire_reset": False}), ("space_invaders", {"max_pool": False, "color": True})],
)
def test_native_equals_gymnasium_path(rom, changes):
    # Without random no-ops and sticky actions nothing is drawn, so both must show the same, but for the
    # terminal observation, which has no use and is stale in the native one.
    protocol = dataclasses.replace(NATURE, noop_max=0, max_agent_steps=25_000, **changes)
    native, other = NativeAtari(rom, protocol, 1), make_atari(rom, protocol, 1)
    native.reset(0)
    other.reset(0)
    ones, others = drive(native, 300), drive(other, 300)
    for one, same in zip(ones, others):
        assert np.array_equal(one.observation, same.observation) or one.terminated[0]
        for name in ("reward", "terminated", "truncated", "valid", "life_lost"):
            assert np.array_equal(getattr(one, name), getattr(same, name))
    assert native.pop_episodes() == other.pop_episodes()


def test_a_game_of_breakout():
    env = NativeAtari("breakout", NATURE, 2)
    env.reset(0)
    steps = drive(env, 500)
    rows = by_environment(steps)
    episodes = env.pop_episodes()
    assert len(episodes) >= 2 and {e.env_id for e in episodes} == {0, 1}
    for i, row in rows.items():
        end = next(k for k, r in enumerate(row) if r[2])
        first = next(e for e in episodes if e.env_id == i)
        assert first.agent_steps == end  # row 0 is the reset observation
        assert first.score == sum(r[1] for r in row[: end + 1])
        # Five lives: four losses that the game survives, and its end, which is not one of them.
        assert [r[5] for r in row[: end + 1]].count(True) == 4
        assert not row[end][5]
        # The autoreset row: no transition, and no life lost or won.
        assert row[end + 1][1:] == (0.0, False, False, False, False)
        assert row[end + 2][4]
        assert not row[0][4] and all(r[4] for r in row[1 : end + 1])


def test_raw_scores():
    env = NativeAtari("space_invaders", NATURE, 1)
    env.reset(0)
    steps = drive(env, 400)
    assert max(step.reward[0] for step in steps) >= 5.0  # an invader is worth 5 to 30 points


def test_truncation_at_the_cap_of_agent_steps():
    protocol = dataclasses.replace(NATURE, max_agent_steps=20)
    env = NativeAtari("breakout", protocol, 2)
    env.reset(3)
    steps = drive(env, 43)
    for k, step in enumerate(steps):
        cut = k in (20, 41)
        assert step.truncated.tolist() == [cut, cut] and not step.terminated.any()
        assert step.valid.tolist() == [k not in (0, 21, 42)] * 2
    assert [(e.agent_steps, e.env_id) for e in env.pop_episodes()] == [(20, 0), (20, 1), (20, 0), (20, 1)]


def test_same_seed_same_rows_and_rows_stay():
    env = NativeAtari("breakout", MACHADO18, 3, threads=2)
    env.reset(7)
    first = drive(env, 60)
    copies = [[field.copy() for field in step] for step in first]
    env.reset(7)  # with a step on its way
    assert_same(first, drive(env, 60))
    for step, fields in zip(first, copies):
        assert all(np.array_equal(a, b) for a, b in zip(step, fields))
    env.reset(8)
    assert by_environment(first) != by_environment(drive(env, 60))
    rows = by_environment(first)
    assert rows[0] != rows[1]


def test_smaller_batches_reproduce_each_environment():
    env = NativeAtari("breakout", NATURE, 4, batch_size=2, threads=2)
    runs = []
    for _ in range(2):  # the second reset comes while environments step
        env.reset(5)
        steps, taken = [], np.zeros(4, np.int64)
        while len(steps) < 3000 and not (len(steps) >= 60 and taken.all()):
            steps += drive(env, 1, taken)
        assert all(len(set(step.env_id.tolist())) == 2 for step in steps)
        runs.append(by_environment(steps))
    whole = NativeAtari("breakout", NATURE, 4)
    whole.reset(5)
    longest = max(len(row) for rows in runs for row in rows.values())
    full = by_environment(drive(whole, longest))
    for rows in runs:
        assert set(rows) == {0, 1, 2, 3}
        for i, row in rows.items():
            assert row == full[i][: len(row)]
            assert not row[0][4]  # every environment begins with its reset observation


def test_native_state_cannot_be_saved_and_protocols_that_it_lacks():
    env = NativeAtari("pong", NATURE, 1)
    assert not env.can_save_state
    for call in (env.get_state, lambda: env.set_state({})):
        with pytest.raises(UsageError, match="cannot"):
            call()
    with pytest.raises(UsageError, match="random skip"):
        NativeAtari("pong", BA3C, 1)


def test_make_environment_chooses_the_backend_and_stamps_it():
    training = make_environment(EnvironmentConfig(game="Pong", protocol="machado18"), 1)
    assert training.stamp["backend"] == "native" and training.stamp["game"] == "pong"
    assert training.action_space.count == 18 and training.observation_shape == (4, 84, 84)
    evaluation = make_environment(EnvironmentConfig(), 1, training=False)
    assert evaluation.stamp["repeat_fire_after"] == 30
    assert make_environment(EnvironmentConfig(), 1).stamp["repeat_fire_after"] == 0
    ba3c = make_environment(EnvironmentConfig(protocol="ba3c"), 2, batch_size=1)
    assert ba3c.stamp["backend"] == "gymnasium" and ba3c.batch_size == 1


def test_a_closed_one_says_so():
    env = NativeAtari("breakout", NATURE, 1)
    env.reset(0)
    env.recv()
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.send(np.zeros(1, np.int32))
