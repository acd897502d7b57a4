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
from ddrl.envs.gymnasium_environment import GymnasiumEnvironment
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


class Resetting(Masking):
    """Its reset gives, or raises, what it was told to, and its step gives what it was told to."""

    def __init__(self, given, action_space=None, step=()):
        super().__init__([], action_space)
        self._given, self._step = given, step

    def reset(self, *, seed=None, options=None):
        return raising(self._given) if isinstance(self._given, BaseException) else self._given

    def step(self, action):
        return self._step


def raising(error):
    raise error


class Unseeded(Masking):
    """Its reset takes no seed."""

    def reset(self):
        return np.zeros(2, np.float32), {}


ROW = np.zeros(2, np.float32)
MISTAKEN = {
    "it raises": (
        lambda: {}["no such level"],
        r"cannot make the game 'test-wrong': KeyError: 'no such level' \(test_adapted.py, line \d+\); fix the environm",
    ),
    "it ends the program": (
        lambda: raising(SystemExit("no license")),
        r"cannot make the game 'test-wrong': SystemExit: no license \(test_adapted.py, line \d+\); fix the environment",
    ),
    "it mistakes a type": (
        lambda: len(3),
        r"cannot make the game 'test-wrong': TypeError: .*no len.* \(test_adapted.py, line \d+\); fix the environment",
    ),
    "it gives nothing": (lambda: None, "--game test-wrong gave None: have it return a gymnasium.Env"),
    "it has no spaces": (gymnasium.Env, "--game test-wrong has no observation_space: set it where"),
    "its reset is that of Gym": (lambda: Resetting(ROW), "test-wrong gave a ndarray from its reset: have it return"),
    "its reset gives no info": (lambda: Resetting((ROW, None)), "test-wrong gave a tuple from its reset: have it"),
    "its reset finds no engine": (
        lambda: Resetting(OSError("no engine")),
        r"test-wrong fails at its first reset: OSError: no engine \(test_adapted.py, line \d+\); fix the environment",
    ),
    "its reset ends the program": (
        lambda: Resetting(SystemExit("no license")),
        r"test-wrong fails at its first reset: SystemExit: no license \(test_adapted.py, line \d+\); fix the env",
    ),
    "its engine is not there": (
        lambda: raising(OSError("no engine")),
        r"cannot make the game 'test-wrong': OSError: no engine \(test_adapted.py, line \d+\); fix the environment",
    ),
    "its reset takes no seed": (
        lambda: Unseeded([]), r"test-wrong fails at its first reset: TypeError: .*seed.* \(adapted.py, line \d+\); fix"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_an_environment_with_a_mistake_is_refused_in_one_line(name):
    make, message = MISTAKEN[name]
    plugins.register_environment("test-wrong", make)
    with pytest.raises(UsageError, match=message) as error:
        make_environment(EnvironmentConfig(game="test-wrong"), 1)
    assert "\n" not in str(error.value)


def test_a_reset_that_no_trial_came_before_is_looked_at_in_the_first_row():
    for shape in ((2,), (1, 2)):  # as it is, and adapted
        name = f"test-box-{len(shape)}"
        plugins.register_environment(name, lambda shape=shape: Resetting(ROW, spaces.Box(-1, 1, shape)))
        env = make_environment(EnvironmentConfig(game=name), 1)
        env.reset(0)
        with pytest.raises(UsageError, match=f"{name} gave a ndarray from its reset"):
            env.recv()


STEPS = {
    "nothing": (None, "a NoneType from its step: have it return .observation, reward, terminated"),
    "four values": ((ROW, 0.0, False, {}), "4 values from its step: have it return .observation, reward, terminated"),
    "no reward": ((ROW, None, False, False, {}), "the reward None from its step: have it return a number"),
    "a reward as text": ((ROW, "1", False, False, {}), "the reward '1' from its step: have it return a number"),
    "two rewards": ((ROW, np.ones(2), False, False, {}), r"the reward \[1. 1.\], terminated = False, .* one of each"),
    "no end": ((ROW, 0.0, None, False, {}), "terminated = None and truncated = False from its step: have it return"),
    "an end as text": ((ROW, 0.0, False, "False", {}), "terminated = False and truncated = 'False' from its step"),
    "two ends": ((ROW, 0.0, False, np.ones(2), {}), r"terminated = False and truncated = array.* from its step: have"),
    "no info": ((ROW, 0.0, False, False, None), "info of NoneType from its step: have it return a dict"),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2)], ids=["as it is", "adapted"])
def test_a_step_that_gives_something_else_is_refused_with_the_name_of_the_game(space, name):
    step, message = STEPS[name]
    plugins.register_environment("test-gym", lambda: Resetting((ROW, {}), space, step))
    with pytest.raises(UsageError, match=f"^test-gym gave {message}") as error:
        play(make_environment(EnvironmentConfig(game="test-gym"), 1), 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", [None, "3", "three", [3, 3], [[3], [3, 3]], np.nan, np.inf, {}], ids=str)
@pytest.mark.parametrize("when", ["reset", "step"])
def test_lives_that_are_no_number_are_refused_with_the_name_of_the_game(given, when):
    first, then = ({"lives": given if when == each else 3} for each in ("reset", "step"))
    plugins.register_environment("test-lives", lambda: Resetting((ROW, first), step=(ROW, 0.0, False, False, then)))
    with pytest.raises(UsageError, match=r'^test-lives gave info\["lives"\] = .*: give a finite number, or') as error:
        play(make_environment(EnvironmentConfig(game="test-lives"), 1), 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", [None, "1", [1.0, 2.0]], ids=str)
def test_what_a_step_adds_to_the_score_must_be_a_number(given):
    step = (ROW, 0.0, False, False, {"score_reward": given})
    plugins.register_environment("test-score", lambda: Resetting((ROW, {}), step=step))
    with pytest.raises(UsageError, match=r'^test-score gave info\["score_reward"\] = .*: give a finite number'):
        play(make_environment(EnvironmentConfig(game="test-score"), 1), 2)


@pytest.mark.parametrize("lives", [2, 2.0, np.uint8(2), np.array([2])], ids=repr)
def test_numbers_of_any_type_count_lives_and_add_to_the_score(lives):
    step = (ROW, 0.0, True, False, {"lives": lives, "score_reward": np.float16(0.5)})
    plugins.register_environment("test-counts", lambda: Resetting((ROW, {"lives": 3}), step=step))
    env = make_environment(EnvironmentConfig(game="test-counts"), 1)
    play(env, 2)
    assert [episode.score for episode in env.pop_episodes()] == [0.5]


@pytest.mark.parametrize("given", [3, [3], [3, 3], np.array([[3], [3]])], ids=repr)
def test_each_player_may_have_lives_and_a_score(given):
    game, rows = type("Game", (Resetting,), {"players": 2}), np.stack([ROW, ROW])
    step = (rows, 0.0, True, False, {"lives": given})
    env = GymnasiumEnvironment(lambda: game((rows, {"score_reward": given}), step=step), 1, {"game": "two"})
    assert len(play(env, 2)) == 2


@pytest.mark.parametrize(
    "observation, message",
    [
        (None, "None of type object is not a number"),
        (np.array(["a", "b"]), "'a' 'b'. of type <U1 is not a number"),
        (np.array([0.5, None]), "0.5 None. of type object is not a number"),
        (ROW.astype(complex), "of type complex128 is not a number"),
        ([[0.5], [0.5, 0.5]], "inhomogeneous"),
    ],
    ids=str,
)
@pytest.mark.parametrize("entries", [0, 1, 2])
def test_observations_that_are_no_numbers_are_refused_with_the_name_of_the_game(observation, message, entries):
    names = "ab"[:entries]
    space = spaces.Dict({name: spaces.Box(0, 1, (2,)) for name in names}) if entries else spaces.Box(0, 1, (2,))
    given = dict.fromkeys(names, observation) if entries else observation
    texts = type("Texts", (Resetting,), {"observation_space": space})
    plugins.register_environment("test-text", lambda: texts((given, {})))
    env = make_environment(EnvironmentConfig(game="test-text"), 1)
    env.reset(0)
    with pytest.raises(UsageError, match=f"^test-text gave an observation {names[:1]}.*beyond its space .*{message}"):
        env.recv()


def test_a_mask_of_none_is_no_mask():
    plugins.register_environment("test-unmasked", lambda: Resetting((ROW, {ACTION_MASK: None})))
    env = make_environment(EnvironmentConfig(game="test-unmasked"), 1)
    assert env.observation_dtype == np.float32


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2)], ids=["as it is", "adapted"])
def test_pixels_that_are_no_bytes_are_refused_and_others_are_cast(space):
    class Painted(Resetting):
        observation_space = spaces.Box(0, 255, (2,), np.uint8)

    for name, pixel in (("test-white", 255.0), ("test-gray", 0.5)):
        plugins.register_environment(name, lambda pixel=pixel: Painted((np.full(2, pixel), {}), space))
    white, gray = (make_environment(EnvironmentConfig(game=f"test-{name}"), 1) for name in ("white", "gray"))
    white.reset(0)
    assert white.recv().observation.tolist() == [[255, 255]]
    gray.reset(0)
    with pytest.raises(UsageError, match=r"test-gray gave an observation beyond its space \(float64 0.5 is no uint8\)"):
        gray.recv()


def test_a_first_reset_that_no_trial_came_before_and_that_raises_is_named():
    plugins.register_environment("test-raises", lambda: Resetting(OSError("no engine"), spaces.Box(-1, 1, (2,))))
    env = make_environment(EnvironmentConfig(game="test-raises"), 1)
    env.reset(0)
    with pytest.raises(UsageError, match="^test-raises fails at its first reset: OSError: no engine .test_adapted.py"):
        env.recv()


@pytest.mark.parametrize("players, rows", [(("white", "black"), 1), (np.int64(2), 2)])
def test_players_that_are_no_number_are_an_environments_own(players, rows):
    named = type("Named", (Resetting,), {"players": players})
    env = GymnasiumEnvironment(lambda: named((ROW, {})), 2, {"game": "named"})
    assert (env.players, env.num_envs) == (rows, 2 * rows)


def linear(env, factor, offset=None):
    """A wrapper with options: rewards times a factor, and an offset if there is one."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward * factor + (0 if offset is None else offset))


@pytest.fixture
def registered():
    """Wrappers and an environment of a plugin."""
    plugins.register_wrapper("test-halved", lambda env: gymnasium.wrappers.TransformReward(env, lambda r: r / 2))
    plugins.register_wrapper("test-one-more", lambda env: gymnasium.wrappers.TransformReward(env, lambda r: r + 1))
    plugins.register_wrapper("test-linear", linear)
    plugins.register_wrapper("test-broken", lambda env: 3)
    plugins.register_wrapper("test-raising", lambda env: 1 / 0)
    plugins.register_wrapper("test-leaving", lambda env: raising(SystemExit("no license")))
    plugins.register_environment("test-own", lambda **options: gymnasium.make("CartPole-v1", **options))
    plugins.register_environment("test-bare", lambda: gymnasium.make("CartPole-v1"))
    yield
    for name in ("test-halved", "test-one-more", "test-linear", "test-broken", "test-raising", "test-leaving"):
        plugins.wrappers.remove(name)
    for name in ("test-own", "test-bare"):
        plugins.environments.remove(name)


@pytest.mark.parametrize("game", ["test-own", "CartPole-v1"])
def test_wrappers_in_their_order(registered, game):
    env = make_environment(EnvironmentConfig(game=game, wrappers=("test-halved", "test-one-more")), 1)
    assert play(env, 3)[-1].reward == [1.5] and env.stamp["wrappers"] == ["test-halved", "test-one-more"]
    other = make_environment(EnvironmentConfig(game=game, wrappers=("test-one-more", "test-halved")), 1, training=False)
    assert play(other, 3)[-1].reward == [1.0]


@pytest.mark.parametrize(
    "options, reward", [("factor=0.25", 0.25), ("factor=2,offset=1e-1", 2.1), ("factor=2,offset=None", 2.0)]
)
def test_options_of_a_wrapper(registered, options, reward):
    wrappers = (f"test-linear:{options}",)
    env = make_environment(EnvironmentConfig(game="CartPole-v1", wrappers=wrappers), 1)
    assert play(env, 3)[-1].reward == pytest.approx([reward]) and env.stamp["wrappers"] == list(wrappers)


def test_wrappers_of_atari(registered):
    env = make_environment(EnvironmentConfig(game="pong", wrappers=("test-one-more",)), 1)
    assert env.stamp["backend"] == "gymnasium" and play(env, 3)[-1].reward == [1.0]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"wrappers": ("nothing",)}, "wrapper nothing: there is none of that name"),
        ({"wrappers": ("test-broken",)}, "--wrappers test-broken gave 3: have it return a gymnasium.Env"),
        ({"wrappers": ("test-raising",)}, r"--wrappers test-raising failed: ZeroDivisionError: .* \(test_adapted.py, "),
        (
            {"wrappers": ("test-leaving",)},
            r"--wrappers test-leaving failed: SystemExit: no license \(test_adapted.py, ",
        ),
        ({"wrappers": ("test-linear:size=2",)}, "--wrappers test-linear:size=2 failed: TypeError: .*size"),
        ({"wrappers": ("test-linear:2",)}, "--wrappers test-linear:2: it is not KEY=VALUE; write test-linear:KEY"),
        ({"wrappers": ("test-halved",), "backend": "envpool"}, "--wrappers .*not for EnvPool's; leave it out"),
    ],
)
def test_wrong_wrappers(registered, settings, message):
    with pytest.raises(UsageError, match=message) as error:
        make_environment(EnvironmentConfig(game="CartPole-v1", **settings), 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("game", ["test-own", "CartPole-v1"])
def test_options_of_a_game(registered, game, training):
    options = ("sutton_barto_reward=True",)
    config = EnvironmentConfig(game=game, game_options=options, wrappers=("test-one-more",))
    env = make_environment(config, 1, training=training)
    assert play(env, 3)[-1].reward == [1.0], "0 of the game, and 1 of the wrapper"
    assert (env.stamp["game_options"], env.stamp["wrappers"]) == (list(options), ["test-one-more"])
    assert "game_options" not in make_environment(EnvironmentConfig(game=game), 1).stamp


def test_values_among_the_options_of_a_game():
    given = []
    plugins.register_environment("test-given", lambda **options: given.append(options) or gymnasium.make("CartPole-v1"))
    texts = ("a=-1", "b=1e-3", "c=True", "d=None", "e=8x8", "f=(0.8,2.0)", "g=['SF','FG']", "h=", "i=k=v", "j={1: 2}")
    make_environment(EnvironmentConfig(game="test-given", game_options=texts), 2)
    wanted = {"a": -1, "b": 1e-3, "c": True, "d": None, "e": "8x8", "f": (0.8, 2.0), "g": ["SF", "FG"], "h": "",
              "i": "k=v", "j": "{1: 2}"}  # fmt: skip
    assert len(given) >= 2 and all(options == wanted and options["c"] is True for options in given)
    assert given[0]["g"] is not given[1]["g"], "an environment may change its own"


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"game": "CartPole-v1"},
            r"--game-options size=2 x=y: cannot make the game 'CartPole-v1': TypeError: .*'size'.* line \d+\); fix",
        ),
        ({"game": "test-own"}, r"the game 'test-own': TypeError: .*'size'.* \(test_adapted.py, line \d+\); fix the o"),
        ({"game": "test-bare"}, r"the game 'test-bare': TypeError: .*'size'.* \(gymnasium_path.py, line \d+\); fix"),
        ({"game": "pong"}, "--game-options size=2 x=y: the rules of Atari games are those of --protocol; leave it out"),
        ({"game": "pong", "protocol": "ba3c"}, "--game-options size=2 x=y: the rules of Atari games"),
        ({"game": "pong", "wrappers": ("test-halved",)}, "--game-options size=2 x=y: the rules of Atari games"),
    ],
)
def test_wrong_options_of_a_game(registered, settings, message):
    with pytest.raises(UsageError, match=message) as error:
        make_environment(EnvironmentConfig(game_options=("size=2", "x=y"), **settings), 1)
    assert "\n" not in str(error.value)
