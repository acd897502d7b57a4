"""Saved states of games on the Gymnasium path."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.envs.saved_state import (
    generator_state,
    get_simulator_state,
    set_generator_state,
    set_simulator_state,
    state_keeper,
)
from ddrl.envs.simulators import PausingSimulator, Simulator
from ddrl.errors import UsageError
from tests.envs.driving import assert_same, drive
from tests.envs.support import make


@pytest.mark.parametrize(
    "game",
    [
        "ddrl/Catch-v0",
        "ddrl/DeepSea-v0",
        "CartPole-v1",
        "Pendulum-v1",
        "Acrobot-v1",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
    ],
)
@pytest.mark.parametrize("before", [0, 1, 9, 10, 57])
def test_saved_state_goes_on_to_the_bit(game, before):
    env = make(game, 3)
    env.reset(11)
    taken = np.zeros(3, np.int64)
    drive(env, before, taken)
    state = {name: np.array(value) for name, value in env.get_state().items()}
    assert all(value.dtype != object for value in state.values())
    taken_then, rest = taken.copy(), drive(env, 60, taken)
    ends = env.pop_episodes()

    fresh = make(game, 3)
    fresh.reset(99)
    drive(fresh, 4)
    fresh.set_state(state)
    assert_same(rest, drive(fresh, 60, taken_then))
    assert fresh.pop_episodes() == ends


def test_saved_between_recv_and_send():
    env, other = make("ddrl/Catch-v0"), make("ddrl/Catch-v0")
    env.reset(3)
    env.recv()
    other.set_state(env.get_state())
    for one in (env, other):
        one.send(np.array([0, 2], np.int32))
    assert_same([env.recv()], [other.recv()])


def test_saved_cartpole_keeps_its_step_limit():
    def cut_after(env, steps):
        return [k for k in range(1, steps + 1) if env.step(k % 2)[3]]

    env, other = (gymnasium.make("CartPole-v1", max_episode_steps=12) for _ in range(2))
    env.reset(seed=0)
    assert cut_after(env, 5) == []
    state_keeper(other).set_state(state_keeper(env).get_state())
    assert cut_after(other, 7) == cut_after(env, 7) == [7]


def test_a_game_that_saves_itself_keeps_its_step_limit():
    env, other = (gymnasium.make("ddrl/Catch-v0", max_episode_steps=5) for _ in range(2))
    env.reset(seed=0)
    assert [env.step(1)[3] for _ in range(3)] == [False] * 3
    state_keeper(other).set_state(state_keeper(env).get_state())
    assert [game.step(1)[3] for game in (env, other) for _ in range(2)] == [False, True] * 2


class Named(gymnasium.Env):
    """Its get_state and set_state may be made for something else than a checkpoint."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, gives):
        self.gives = gives

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def get_state(self):
        return self.gives() if callable(self.gives) else self.gives

    def set_state(self, state):
        pass


@pytest.mark.parametrize(
    ("gives", "saved"),
    [
        ({"place": np.zeros(2), "steps": 3}, True),
        (b"what a C++ simulator keeps", False),
        (np.zeros(4), False),
        ({"game": object()}, False),
        ({1: np.zeros(2)}, False),
        ({"rows": [[1], [2, 3]]}, False),
        (lambda wanted: wanted, False),
    ],
    ids=["arrays", "bytes", "an array", "an object", "a number for a name", "rows of two lengths", "an argument"],
)
def test_a_get_state_that_was_made_for_something_else_is_left_alone(gives, saved):
    gymnasium.register("ddrl-test/Named-v0", lambda **options: Named(gives), disable_env_checker=True)
    try:
        env = make("ddrl-test/Named-v0")
        env.reset(0)
        drive(env, 3)
        assert env.can_save_state is saved
        assert not saved or env.get_state()["0/steps"] == 3
    finally:
        gymnasium.registry.pop("ddrl-test/Named-v0")


class InPlace(Named):
    """Its observation and its state are one array, which each step changes; an episode has one step."""

    def __init__(self):
        self.place = np.zeros(1, np.float32)
        super().__init__({"place": self.place})

    def reset(self, *, seed=None, options=None):
        return self.place, {}

    def step(self, action):
        self.place += 1.0
        return self.place, 0.0, True, False, {}


def test_a_saved_state_stays_as_it_is_while_the_game_steps_on():
    simulator = PausingSimulator(InPlace(), "in-place")
    simulator.reset(0)
    simulator.next(0)
    simulator.reset_ended()
    state = get_simulator_state(simulator)
    simulator.env.step(0)
    assert simulator.env.place.tolist() == [2.0]
    assert [state[name].tolist() for name in ("place", "simulator/final", "simulator/fresh")] == [[1.0]] * 3


class Clashing(Named):
    """Its state has the names of what a simulator saves."""

    def __init__(self):
        super().__init__({name: np.array([number, 7]) for number, name in enumerate(("ended", "final", "fresh"))})

    def set_state(self, state):
        self.gives = state


@pytest.mark.parametrize("kind", [Simulator, PausingSimulator])
def test_a_game_gets_the_state_that_it_gave_whatever_its_names(kind):
    simulator, other = kind(Clashing(), "clashing"), kind(Clashing(), "clashing")
    simulator.ended = True
    other.env.gives = {}
    set_simulator_state(other, get_simulator_state(simulator))
    given = {name: value.tolist() for name, value in other.env.gives.items()}
    assert other.ended and given == {"ended": [0, 7], "final": [1, 7], "fresh": [2, 7]}


def test_a_state_of_an_older_checkpoint_has_the_names_without_a_prefix():
    simulator, other = PausingSimulator(InPlace(), "in-place"), PausingSimulator(InPlace(), "in-place")
    simulator.reset(0)
    simulator.next(0)
    simulator.reset_ended()
    older = {name.removeprefix("simulator/"): value for name, value in get_simulator_state(simulator).items()}
    set_simulator_state(other, older)
    assert other.ended and other.final.tolist() == other.fresh[0].tolist() == [1.0]


def test_the_state_of_wrappers_that_remember_is_not_known():
    env = gymnasium.make("CartPole-v1")
    assert state_keeper(gymnasium.wrappers.TransformReward(env, lambda reward: 0.5 * reward)) is not None
    assert state_keeper(gymnasium.wrappers.FrameStackObservation(env, 4)) is None


def test_what_cannot_be_saved_says_so():
    env = make("ddrl-test/Scripted-v0")
    assert not env.can_save_state
    with pytest.raises(UsageError, match="Scripted-v0 cannot save its state"):
        env.get_state()
    with pytest.raises(UsageError, match="saved state has 3 environments, and this run has 2"):
        make("ddrl/Catch-v0", 2).set_state(make("ddrl/Catch-v0", 3).get_state())


def test_generator_state_round_trip():
    generator = np.random.default_rng(5)
    generator.integers(5, dtype=np.int32)  # leaves half a word behind
    words = generator_state(generator)
    assert words.dtype == np.uint64 and words[4] == 1
    other = np.random.default_rng(6)
    set_generator_state(other, words)
    draws = [g.integers(1000, size=20, dtype=np.int32).tolist() for g in (generator, other)]
    assert draws[0] == draws[1]
