"""Environments of several entries and with masks, in this thread and in processes; wrong masks; wrappers."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import tests.envs.doors  # noqa: F401  (registers)
from ddrl import plugins
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.adapted import Adapted
from ddrl.envs.spaces import random_action
from ddrl.errors import UsageError
from ddrl.structured import ACTION_MASK
from ddrl.types import Continuous, Discrete, MultiDiscrete

spaces = gymnasium.spaces
DOORS = "tests.envs.doors:ddrl-test/"
FIELDS = {"light": (8, 8, 1), "number": (4,), "rest/0": (2,), "rest/1": (2, 2)}


def play(env, steps, seed=1):
    """Random legal actions; the steps received."""
    generator, received = np.random.default_rng(seed), []
    env.reset(seed)
    for _ in range(steps):
        step = env.recv()
        received.append(step)
        masks = step.observation[ACTION_MASK] if ACTION_MASK in (step.observation.dtype.names or ()) else None
        rows = range(len(step.env_id))
        env.send(
            np.stack([random_action(env.action_space, generator, None if masks is None else masks[i]) for i in rows])
        )
    return received


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


class Masking(gymnasium.Env):
    """Gives the masks that it was told to, one for the reset and one for each step."""

    observation_space = spaces.Box(0, 1, (2,))

    def __init__(self, masks, action_space=None, ends=False):
        self.action_space = action_space or spaces.Discrete(3)
        self._masks, self._ends = list(masks), ends

    def _info(self):
        mask = self._masks.pop(0)
        return {} if mask is None else {ACTION_MASK: mask}

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), self._info()

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, self._ends, False, self._info()


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
        (([1, 1, 1], [0, 0, 0]), r"the game at step 1 of an episode allows no action"),
        (([1, 1, 1], [1, 0, 1], [1, 0]), r"at step 2 of an episode gave an action_mask of 2 entries for 3"),
        (([1, 1, 1], None), r"at step 1 of an episode gave no action_mask, but one with its first reset"),
    ],
)
def test_wrong_masks(masks, message):
    with pytest.raises(UsageError, match=message) as error:
        masks_of(masks)
    assert "\n" not in str(error.value)


def test_a_mask_that_comes_late():
    with pytest.raises(UsageError, match="at step 1 of an episode gave an action_mask, but none with its first reset"):
        masks_of((None, [1, 0, 0]), masked=False)


def test_the_end_of_an_episode_needs_no_mask():
    for last in (None, [0, 0, 0]):
        assert masks_of(([1, 0, 1], last), ends=True) == [[True, False, True], [True] * 3]


def test_masks_of_several_components():
    pair, bits = spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)
    flat, parts = np.int8([1, 0, 0, 1, 1]), (np.int8([1, 0]), np.int8([0, 1, 1]))
    assert masks_of((flat, parts), action_space=pair) == [[True, False, False, True, True]] * 2
    with pytest.raises(UsageError, match="at step 1 of an episode allows no action"):
        masks_of((flat, np.int8([1, 1, 0, 0, 0])), action_space=pair)
    assert masks_of(([0, 2], [1, 0, 1, 1]), action_space=bits) == [[True, False, True, True]] * 2


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


@pytest.fixture
def registered():
    """Wrappers and an environment of a plugin."""
    plugins.register_wrapper("test-halved", lambda env: gymnasium.wrappers.TransformReward(env, lambda r: r / 2))
    plugins.register_wrapper("test-one-more", lambda env: gymnasium.wrappers.TransformReward(env, lambda r: r + 1))
    plugins.register_wrapper("test-broken", lambda env: 3)
    plugins.register_wrapper("test-raising", lambda env: 1 / 0)
    plugins.register_environment("test-own", lambda **options: gymnasium.make("CartPole-v1", **options))
    yield
    for name in ("test-halved", "test-one-more", "test-broken", "test-raising"):
        plugins.wrappers.remove(name)
    plugins.environments.remove("test-own")


@pytest.mark.parametrize("game", ["test-own", "CartPole-v1"])
def test_wrappers_in_their_order(registered, game):
    env = make_environment(EnvironmentConfig(game=game, wrappers=("test-halved", "test-one-more")), 1)
    assert play(env, 3)[-1].reward == [1.5] and env.stamp["wrappers"] == ["test-halved", "test-one-more"]
    other = make_environment(EnvironmentConfig(game=game, wrappers=("test-one-more", "test-halved")), 1, training=False)
    assert play(other, 3)[-1].reward == [1.0]


def test_wrappers_of_atari(registered):
    env = make_environment(EnvironmentConfig(game="pong", wrappers=("test-one-more",)), 1)
    assert env.stamp["backend"] == "gymnasium" and play(env, 3)[-1].reward == [1.0]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"wrappers": ("nothing",)}, "wrapper nothing: there is none of that name"),
        ({"wrappers": ("test-broken",)}, "--wrappers test-broken gave 3: have it return a gymnasium.Env"),
        ({"wrappers": ("test-raising",)}, "--wrappers test-raising failed: ZeroDivisionError"),
        ({"wrappers": ("test-halved",), "backend": "envpool"}, "--wrappers .*not for EnvPool's; leave it out"),
    ],
)
def test_wrong_wrappers(registered, settings, message):
    with pytest.raises(UsageError, match=message) as error:
        make_environment(EnvironmentConfig(game="CartPole-v1", **settings), 1)
    assert "\n" not in str(error.value)
