"""What the replay gives, against a slow one that keeps every observation whole."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.replay.replay import Replay, check_memory
from tests.replay.simulators import DISCOUNT, Simulators, SlowReplay
from tests.unrolls import random_unroll


def make(simulators: Simulators, capacity=60, **options) -> Replay:
    return Replay(
        capacity,
        simulators.simulators,
        simulators.observation_shape,
        simulators.dtype,
        stack=simulators.stack,
        **options,
    )


def everything(replay: Replay):
    """All transitions that can be drawn, once each, in order of their keys."""
    keys = {}
    random = np.random.default_rng(0)
    for _ in range(1000):
        if len(keys) == replay.size:
            break
        drawn = replay.sample(random, 64)
        for i, key in enumerate(drawn.key.tolist()):
            keys.setdefault(key, tuple(np.array(array[i]) for array in drawn[:-1]))
    assert len(keys) == replay.size
    return [keys[key] for key in sorted(keys)]


def assert_same(replay: Replay, slow: SlowReplay) -> None:
    replay.check()
    expected = slow.transitions()
    assert replay.size == len(expected)
    for mine, other in zip(everything(replay) if expected else [], expected, strict=True):
        observation, action, reward, discount, after, _, version, _ = mine
        np.testing.assert_array_equal(observation, other[0])
        assert (action, version) == (other[1], other[5])
        np.testing.assert_allclose(reward, other[2], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(discount, other[3], rtol=1e-6)
        np.testing.assert_array_equal(after, other[4])


@pytest.mark.parametrize("n_step", (1, 3))
@pytest.mark.parametrize("stack, dtype", ((4, np.uint8), (1, np.float32), (2, np.float32)))
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_whole_observations_over_ends_and_wrap_around(n_step, stack, dtype, seed):
    """Unrolls of many lengths, some longer than the ring, more than ten times its capacity in all."""
    random = np.random.default_rng(seed)
    simulators = Simulators(3, stack, dtype=dtype, seed=seed)
    replay, slow = make(simulators, n_step=n_step), SlowReplay(3, 60, n_step)
    assert_same(replay, slow)
    for steps in (1, 1, 2, *random.integers(1, 30, 14), 75):
        unroll = simulators.unroll(steps)
        replay.add(unroll)
        slow.add(unroll)
        assert_same(replay, slow)


@pytest.mark.parametrize("amid", (False, True))
@pytest.mark.parametrize("stack", (1, 4))
def test_a_reset_between_two_unrolls_truncates(stack, amid):
    """The first observation after it may have frames that no row has shown, as after a random start."""
    simulators = Simulators(2, stack, seed=5)
    simulators.reset(amid=amid)
    replay, slow = make(simulators, 1000, n_step=3), SlowReplay(2, 1000, 3)
    for index, steps in enumerate((7, 1, 9, 2, 12)):
        resets = index in (1, 3)
        if resets:
            simulators.reset(amid=amid)
        unroll = simulators.unroll(steps)
        replay.add(unroll)
        slow.add(unroll, after_reset=resets)
    assert replay.size == len(slow.transitions()) > 20
    for mine, other in zip(everything(replay), slow.transitions(), strict=True):
        np.testing.assert_array_equal(mine[0], other[0])
        np.testing.assert_array_equal(mine[4], other[4])
        np.testing.assert_allclose(mine[2:4], other[2:4], rtol=1e-6, atol=1e-7)


def test_simulators_that_idle_after_an_episode_are_no_resets():
    """As `--reset in-pause` shows them: the final observation, again and again."""
    simulators = Simulators(3, 4, seed=2, idle=6)
    replay, slow = make(simulators, 90), SlowReplay(3, 90, 1)
    for _ in range(30):
        unroll = simulators.unroll(5)
        replay.add(unroll)
        slow.add(unroll)
        assert_same(replay, slow)


def scripted(rewards, discounts, continues, valid, stack=1):
    """One simulator's unroll, whose observation at step t is t + 1."""
    simulators = Simulators(1, stack, frame=(1,), dtype=np.float32)
    column = lambda values: np.array(values, np.float32)[:, None]
    steps = len(rewards)
    return simulators.unroll(steps)._replace(
        observation=np.arange(1.0, steps + 2, dtype=np.float32).reshape(-1, 1, 1),
        reward=column(rewards),
        discount=column(discounts),
        continues=column(continues),
        valid=column(valid),
    )


def test_three_steps_by_hand():
    """Rows 0 to 2 truncate, 3 is the final observation, 4 and 5 terminate, 6 is final, 7 to 9 go on."""
    g = 0.5
    replay = Replay(100, 1, (1,), np.float32, n_step=3)
    replay.add(
        scripted(
            rewards=(1, 2, 4, 0, 8, 16, 0, 32, 64, 128),
            discounts=(g, g, g, g, g, 0, g, g, g, g),
            continues=(1, 1, 0, 1, 1, 0, 1, 1, 1, 1),
            valid=(1, 1, 1, 0, 1, 1, 0, 1, 1, 1),
        )
    )
    found = {int(t[7]): tuple(float(np.squeeze(t[i])) for i in (0, 2, 3, 4)) for t in everything(replay)}
    assert found == {  # row: observation, return, discount, next observation
        0: (1, 1 + 2 * g + 4 * g * g, g**3, 4),
        1: (2, 2 + 4 * g, g**2, 4),
        2: (3, 4, g, 4),
        4: (5, 8 + 16 * g, 0, 7),
        5: (6, 16, 0, 7),
        7: (8, 32 + 64 * g + 128 * g * g, g**3, 11),
    }


def test_one_step_reaches_the_newest_observation():
    replay = Replay(100, 1, (1,), np.float32)
    replay.add(scripted((1, 2), (0.9, 0.9), (1, 1), (1, 1)))
    assert [float(t[4].item()) for t in everything(replay)] == [2, 3]


def test_the_first_observation_of_an_episode_has_no_frames_of_the_last_one():
    simulators = Simulators(1, 4, frame=(1,), seed=1, chances=(0, 1, 0, 0, 0))  # every step terminates
    replay = make(simulators)
    replay.add(simulators.unroll(20))
    for observation, *_ in everything(replay):
        assert not observation[:3].any() and observation[3]


def test_capacity_counts_transitions_of_all_simulators():
    simulators = Simulators(4, 2, chances=(1, 0, 0, 0, 0))
    for capacity, size in ((40, 40), (43, 40), (4, 4)):
        replay = make(simulators, capacity, n_step=2)
        replay.add(simulators.unroll(50))
        assert replay.size == size
        replay.check()


def test_an_observation_that_is_not_moved_on_by_a_frame_is_refused_and_nothing_stored():
    simulators = Simulators(2, 4, chances=(1, 0, 0, 0, 0))
    replay = make(simulators)
    replay.add(simulators.unroll(5))
    before = everything(replay)
    wrong = simulators.unroll(6)
    wrong.observation[3, 1, 0] += 1
    with pytest.raises(UsageError, match="simulator 1 at step 3 of 6"):
        replay.add(wrong)
    for mine, other in zip(everything(replay), before, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "change", ({"observation": np.zeros((6, 2, 8, 2, 4), np.uint8)}, {"action": np.zeros((5, 2), np.int64)})
)
def test_other_shapes_and_types_are_refused(change):
    simulators = Simulators(2, 4)
    with pytest.raises(ValueError, match=next(iter(change))):
        make(simulators).add(simulators.unroll(5)._replace(**change))


def test_sampling_an_empty_replay_is_refused():
    with pytest.raises(ValueError, match="no transition"):
        make(Simulators()).sample(np.random.default_rng(0), 4)


@pytest.mark.parametrize(
    "options, words",
    (
        ({"capacity": 2}, "--replay-capacity 2: must be at least the number of simulators, 3"),
        ({"n_step": 0}, "--n-step 0"),
        ({"priority_exponent": float("nan")}, "--priority-exponent nan"),
        ({"priority_exponent": 1.5}, "--priority-exponent 1.5"),
        ({"stack": 3}, r"\[8, 2, 3\] are not stacks of 3"),
    ),
)
def test_impossible_numbers_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        given = {"capacity": 60, "simulators": 3, "observation_shape": (8, 2, 3), "observation_dtype": np.uint8}
        Replay(**given | options)


def test_the_bytes_are_known_before_they_are_taken():
    shape = {"simulators": 8, "observation_shape": (4, 84, 84), "observation_dtype": np.uint8, "stack": 4, "n_step": 3}
    assert 7.0e9 < Replay.bytes_for(1_000_000, **shape) < 7.2e9
    replay = Replay(1000, **shape)
    taken = sum(array.nbytes for array in replay._history.rows) + replay._tree._sums.nbytes
    assert taken <= Replay.bytes_for(1000, **shape) <= taken + 1024
    with pytest.raises(UsageError, match="needs 7,.* bytes .7.1 GB., and only 6,000,000,000 .*--replay-capacity"):
        check_memory(Replay.bytes_for(1_000_000, **shape), 6_000_000_000)


def test_the_reward_of_the_steps_is_discounted_as_recorded():
    """A lost life that does not count, and one that does, differ in the recorded discount only."""
    simulators = Simulators(1, 1, frame=(1,), dtype=np.float32, chances=(1, 0, 0, 0, 0))
    replay = make(simulators, 100, n_step=4)
    unroll = simulators.unroll(4)
    replay.add(unroll)
    (mine,) = everything(replay)
    np.testing.assert_allclose(mine[2], sum(DISCOUNT**k * unroll.reward[k, 0] for k in range(4)), rtol=1e-6)
    np.testing.assert_allclose(mine[3], DISCOUNT**4, rtol=1e-6)


def test_continuous_actions_come_back_and_are_saved(tmp_path):
    unroll = random_unroll(draw_actions=lambda random, shape: random.standard_normal((*shape, 2)).astype(np.float32))
    kind = {"action": ((2,), np.float32)}
    replay = Replay(100, 6, (3,), np.float32, **kind)
    replay.add(unroll)
    rows, columns = np.divmod([int(t[7]) for t in everything(replay)], 6)
    found = np.stack([t[1] for t in everything(replay)])
    np.testing.assert_array_equal(found, unroll.action[rows, columns])
    assert found.dtype == np.float32 and len(found) > 30
    manifest = replay.save(tmp_path)
    again = Replay(100, 6, (3,), np.float32, **kind)
    again.load(tmp_path, manifest)
    np.testing.assert_array_equal(np.stack([t[1] for t in everything(again)]), found)
    with pytest.raises(UsageError, match="the saved replay has action components 2, this run has 3"):
        Replay(100, 6, (3,), np.float32, action=((3,), np.float32)).load(tmp_path, manifest)
    with pytest.raises(ValueError, match="action is float32"):
        Replay(100, 6, (3,), np.float32).add(unroll)
    size = {name: Replay.bytes_for(100, 6, (3,), np.float32, **options) for name, options in (("2", kind), ("1", {}))}
    assert size["2"] - size["1"] == 17 * 6 * 4
