"""Environments of several entries and with masks, in this thread and in processes; wrong masks."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import tests.envs.doors  # noqa: F401  (registers)
from ddrl import plugins
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.adapted import Adapted
from ddrl.errors import UsageError
from ddrl.structured import ACTION_MASK
from ddrl.types import Continuous, Discrete, MultiDiscrete
from tests.envs.support import Masking, play

spaces = gymnasium.spaces
DOORS = "tests.envs.doors:ddrl-test/"
FIELDS = {"light": (8, 8, 1), "number": (4,), "rest/0": (2,), "rest/1": (2, 2)}


@pytest.mark.parametrize(
    "name, space, mask",
    [
        ("Doors", Discrete(4), 4),
        ("OpenDoors", Discrete(4), 0),
        ("PairDoors", MultiDiscrete((4, 2)), 6),
        ("BitDoors", MultiDiscrete((2, 2)), 4),
        ("BoxDoors", Continuous((-1.0, -1.0), (1.0, 1.0)), 0),
    ],
)
def test_spaces(name, space, mask):
    env = make_environment(EnvironmentConfig(game=f"{DOORS}{name}-v0", random_start_steps=5), 3)
    assert env.action_space == space and env.observation_shape == ()
    shapes = {field: env.observation_dtype[field].shape for field in env.observation_dtype.names}
    assert shapes == FIELDS | ({ACTION_MASK: (mask,)} if mask else {})
    received = play(env, 40)  # the doors raise at a closed one
    assert received[-1].observation.shape == (3,) and sum(step.terminated.sum() for step in received) >= 9
    env.close()


def test_an_observation_that_is_no_dictionary_has_its_mask_beside_it():
    env = make_environment(EnvironmentConfig(game=f"{DOORS}FlatDoors-v0"), 2)
    assert env.observation_dtype.names == ("observation", ACTION_MASK)
    assert env.observation_dtype["observation"].shape == (74,)
    play(env, 20)
    taxi = make_environment(EnvironmentConfig(game="Taxi-v4"), 1)
    assert taxi.observation_dtype == np.dtype([("observation", "?", (500,)), (ACTION_MASK, "?", (6,))])
    plain = make_environment(EnvironmentConfig(game="FrozenLake-v1"), 1)
    assert (plain.observation_shape, plain.observation_dtype) == ((16,), bool)
    step = play(plain, 3)[-1]
    assert step.observation.sum() == 1


@pytest.mark.parametrize("options", [{"simulator_processes": 2}, {"reset": "swap"}, {"reset": "in-pause"}])
def test_other_ways_of_stepping_show_the_same(options):
    game = f"{DOORS}PairDoors-v0"
    expected, steps = play(make_environment(EnvironmentConfig(game=game), 2), 8), 8
    env = make_environment(EnvironmentConfig(game=game, **options), 2)
    for one, other in zip(expected, play(env, steps), strict=True):
        np.testing.assert_array_equal(one.observation, other.observation)
    env.close()


@pytest.mark.parametrize("reset", ["at-once", "in-pause"])
def test_saved_states(reset):
    config = EnvironmentConfig(game=f"{DOORS}Doors-v0", reset=reset)
    env, other = make_environment(config, 2), make_environment(config, 2)
    play(env, 11)
    observation = env.recv().observation
    state = env.get_state()
    other.reset(9)
    other.set_state({name: np.array(array) for name, array in state.items()})
    for _ in range(12):
        for each in (env, other):
            each.send(observation[ACTION_MASK].argmax(axis=1).astype(np.int32))
        observation = env.recv().observation
        np.testing.assert_array_equal(observation, other.recv().observation)
        for each in (env, other):
            each.reset_ended()


def test_a_forbidden_action_is_refused():
    env = make_environment(EnvironmentConfig(game=f"{DOORS}Doors-v0"), 8)
    env.reset(0)
    mask = env.recv().observation[ACTION_MASK]
    forbidden = (~mask).argmax(axis=1)
    with pytest.raises(ValueError, match="is not legal there"):
        env.send(forbidden.astype(np.int32))


def masks_of(masks, masked=True, **options):
    """The masks that the observations have."""
    env = Adapted(Masking(masks, **options), "the game", masked)
    seen = [env.reset()[0]]
    action = np.zeros(env._space.action_shape, np.int32)
    seen += [env.step(action)[0] for _ in masks[1:]]
    return [observation[ACTION_MASK].tolist() if masked else None for observation in seen]


@pytest.mark.parametrize(
    "masks, message",
    [
        (([1, 1, 1], [0, 0, 0]), r"the game at step 1 of an episode allows no action .*only zeros\); end the episode"),
        (([0, 0, 0],), r"the game at step 0 of an episode allows no action .*only zeros\); begin where one is legal$"),
        ((np.array(["1", "1", "0"]),), r"gave the action_mask \['1' '1' '0'\] of type <U1; give it 0 for each illegal"),
        (([1, None, 0],), r"at step 0 of an episode gave the action_mask \[1, None, 0\] of type object; give it 0"),
        (([1, 1, 1], [1.0, np.nan, 0.0]), r"step 1 of an episode gave the action_mask .*nan.* of type float64; give"),
        (({"left": 1},), r"gave the action_mask {'left': 1} of type object; give it 0"),
        (([1, 1, 1], [1, 0, 1], [1, 0]), r"at step 2 of an episode gave an action_mask of length 2; give it length 3"),
        (([1, 1, 1], None), r"at step 1 of an episode gave no action_mask, but its first reset gave one"),
    ],
)
def test_wrong_masks(masks, message):
    with pytest.raises(UsageError, match=message) as error:
        masks_of(masks)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2)], ids=["as it is", "adapted"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_mask_that_comes_late(space, ends):
    """With a step, or with the reset after it."""
    masks = [None, *[None] * ends, [1, 0, 0, 1]]
    plugins.register_environment("test-late", lambda: Masking(masks, space, ends))
    env = make_environment(EnvironmentConfig(game="test-late"), 1)
    assert len(play(env, len(masks) - 1)) == len(masks) - 1
    with pytest.raises(UsageError, match="^test-late gave an action_mask, but its first reset gave none; give one"):
        env.recv()


def test_a_mask_of_continuous_actions_is_left_alone():
    plugins.register_environment("test-box", lambda: Masking([None, [1, 0]], spaces.Box(-1, 1, (2,))))
    assert len(play(make_environment(EnvironmentConfig(game="test-box"), 1), 2)) == 2


def test_the_end_of_an_episode_needs_no_mask():
    for last in (None, [0, 0, 0]):
        assert masks_of(([1, 0, 1], last), ends=True) == [[True, False, True], [True] * 3]


def test_masks_of_several_components():
    pair, bits = spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)
    flat, parts = np.int8([1, 0, 0, 1, 1]), (np.int8([1, 0]), np.int8([0, 1, 1]))
    assert masks_of((flat, parts), action_space=pair) == [[True, False, False, True, True]] * 2
    with pytest.raises(UsageError, match="at step 1 of an episode allows no action of component 1 .*only zeros there"):
        masks_of((flat, np.int8([1, 1, 0, 0, 0])), action_space=pair)
    assert masks_of(([0, 2], [1, 0, 1, 1]), action_space=bits) == [[True, False, True, True]] * 2
    table, rows = spaces.MultiDiscrete([[2, 3], [1, 2]]), (parts, (np.int8([1]), np.int8([0, 1])))
    assert masks_of((rows, rows), action_space=table) == [[True, False, False, True, True, True, False, True]] * 2


class Strict(Masking):
    """Takes only actions of its space, type included."""

    def step(self, action):
        assert self.action_space.contains(action), action
        return super().step(action)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-1, dtype=np.int8),
        spaces.Discrete(3, start=2, dtype=np.uint64),
        spaces.Box(-0.1, 0.1, (2,), np.float16),
        spaces.Box(-0.1, 0.1, (1, 2), np.float16),
    ],
    ids=str,
)
def test_actions_have_the_type_of_the_space(space):
    plugins.register_environment("test-strict", lambda: Strict([None] * 20, space))
    env = make_environment(EnvironmentConfig(game="test-strict", random_start_steps=5), 2)
    assert len(play(env, 8)) == 8


def test_the_mask_among_the_observations():
    class Named(Masking):
        observation_space = spaces.Dict({"board": spaces.Box(0, 1, (2,)), ACTION_MASK: spaces.MultiBinary(3)})

        def reset(self, *, seed=None, options=None):
            return {"board": np.zeros(2), ACTION_MASK: np.int8([0, 1, 1])}, {}

    env = Adapted(Named([]), "the game", True)
    assert env.format.dtype == np.dtype([("board", "f4", (2,)), (ACTION_MASK, "?", (3,))])
    assert env.reset()[0][ACTION_MASK].tolist() == [False, True, True]
    with pytest.raises(
        UsageError, match="has an entry action_mask, a name that is reserved for masks of discrete actions"
    ):
        Adapted(Named([], spaces.Box(-1, 1, (2,))), "the game", False)


def test_an_observation_that_lacks_its_mask_is_refused():
    class Named(Masking):
        observation_space = spaces.Dict({"board": spaces.Box(0, 1, (2,)), ACTION_MASK: spaces.MultiBinary(3)})

        def reset(self, *, seed=None, options=None):
            return {"board": np.zeros(2)}, {}

    with pytest.raises(UsageError, match="the game at step 0 of an episode gave no action_mask"):
        Adapted(Named([]), "the game", True).reset()
