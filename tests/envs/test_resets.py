"""What takes the place of an ended episode: a reset at once, in the learner's pause, or a fresh instance."""

from __future__ import annotations

import threading

import gymnasium
import numpy as np
import pytest

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.gymnasium_environment import GymnasiumEnvironment
from ddrl.envs.simulators import SwappingSimulator
from ddrl.errors import UsageError
from ddrl.npz import decode_arrays, encode_arrays
from ddrl.types import EpisodeEnd
from tests.envs.driving import assert_same, by_environment, drive


def make(game: str, num_envs: int, reset: str, **options):
    return make_environment(EnvironmentConfig(game=game, reset=reset), num_envs, **options)


def test_in_pause_idles_until_the_pause():
    env = make("ddrl-test/Scripted-v0", 1, "in-pause")
    env.reset(0)
    rows = drive(env, 7)  # the episode ends with row 3
    assert [int(step.valid[0]) for step in rows] == [0, 1, 1, 1, 0, 0, 0]
    assert [int(step.terminated[0]) for step in rows] == [0, 0, 0, 1, 0, 0, 0]
    assert all(np.array_equal(step.observation, rows[3].observation) for step in rows[4:])
    with pytest.raises(RuntimeError, match="reset_ended called where recv is due"):
        env.reset_ended()
    env.recv()
    env.reset_ended()
    env.send(np.zeros(1, np.int32))
    fresh = env.recv()
    assert not fresh.valid[0] and fresh.observation.tolist() == [[1.0, 0.0, -1.0]]
    env.send(np.zeros(1, np.int32))
    step = env.recv()
    assert step.valid[0] and step.reward.tolist() == [0.5] and not step.life_lost[0]
    env.reset_ended()  # nobody idles
    env.send(np.zeros(1, np.int32))
    assert env.recv().truncated[0]
    assert env.pop_episodes() == [EpisodeEnd(4.0, 3, 0), EpisodeEnd(0.75, 2, 0)]


def test_in_pause_with_a_pause_at_every_step_is_at_once():
    ones, others = make("ddrl/Catch-v0", 3, "at-once"), make("ddrl/Catch-v0", 3, "in-pause")
    ones.reset(4)
    others.reset(4)
    for k in range(50):
        actions = np.array([k % 3, 1, (k // 3) % 3], np.int32)
        assert_same([ones.recv()], [others.recv()])
        others.reset_ended()
        for env in (ones, others):
            env.send(actions)
    assert ones.pop_episodes() == others.pop_episodes()


def test_in_pause_goes_on_to_the_bit():
    env, again = make("ddrl/Catch-v0", 2, "in-pause"), make("ddrl/Catch-v0", 2, "in-pause")
    env.reset(1)
    for before in (9, 3, 1):  # running, idle, reset in the pause
        drive(env, before)
        env.recv()
        if before == 1:
            env.reset_ended()
        again.set_state(env.get_state())
        for one in (env, again):
            one.send(np.ones(2, np.int32))
        rows = drive(env, 15)
        assert_same(rows, drive(again, 15))
    assert rows[0].observation.any() and rows[1].valid.all()


class Later(gymnasium.Env):
    """Episodes of one step. Resets but an instance's first give what they are told to."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, players: int, later: object) -> None:
        self.players, self._later, self._resets = players, later, 0
        self._rows = np.zeros((players, 2), np.float32) if players > 1 else np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        self._resets += 1
        return self._later if self._resets > 1 else (self._rows, {"lives": 3})

    def step(self, action):
        return self._rows, 0.0, True, False, {}

    def get_state(self):
        return {"resets": np.array(self._resets)}

    def set_state(self, state):
        self._resets = int(state["resets"])


def reset_in_pause(later: object, players: int = 1) -> GymnasiumEnvironment:
    """An environment whose second episode begins with the next row: it was reset in a pause."""
    env = GymnasiumEnvironment(lambda: Later(players, later), 1, {"game": "later"}, reset="in-pause")
    env.reset(0)
    drive(env, 1)
    env.recv()
    env.reset_ended()
    return env


ROW = np.zeros(2, np.float32)
WRONG = {
    "lives": ((ROW, {"lives": None}), r'later gave info\["lives"\] = None: give a finite number, or leave it out'),
    "observation": ((None, {}), "later gave an observation "),
    "start": (ROW, "later gave a ndarray from its reset: have it return"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_start_in_a_pause_is_refused_in_one_line_before_it_is_saved(name):
    later, message = WRONG[name]
    env = reset_in_pause(later)
    with pytest.raises(UsageError, match=f"^{message}") as error:
        env.get_state()
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=f"^{message}"):  # also where whoever saves goes on without the state
        env.send(np.zeros(1, np.int32))
        env.recv()
    env.close()


@pytest.mark.parametrize("reset", ["at-once", "in-pause", "swap"])
def test_a_later_reset_that_gives_something_else_is_refused_with_the_name_of_the_game(reset):
    env = GymnasiumEnvironment(lambda: Later(1, ROW), 1, {"game": "later"}, reset=reset)
    env.reset(0)
    with pytest.raises(UsageError, match=r"^later gave a ndarray from its reset: have it return \(observation, info\)"):
        for _ in range(6):
            env.recv()
            env.reset_ended()
            env.send(np.zeros(1, np.int32))


@pytest.mark.parametrize("lives", [3, [3, 2]], ids=str)
def test_lives_of_each_player_in_a_start_of_a_pause_go_on(lives):
    env, again = (reset_in_pause((np.ones((2, 2), np.float32), {"lives": lives}), players=2) for _ in range(2))
    again.set_state(decode_arrays(encode_arrays(env.get_state())))
    for one in (env, again):
        one.send(np.zeros(2, np.int32))
    assert_same([env.recv()], [again.recv()])
    for one in (env, again):
        assert one.get_state()["tracker/lives"].tolist() == np.broadcast_to(lives, 2).tolist()


def test_an_episode_that_had_ended_at_once_is_followed_by_the_next_in_pause():
    env, again = make("ddrl/Catch-v0", 2, "at-once"), make("ddrl/Catch-v0", 2, "in-pause")
    env.reset(1)
    drive(env, 9)
    assert env.recv().terminated.all()
    again.set_state(env.get_state())
    for one in (env, again):
        one.send(np.ones(2, np.int32))
    assert_same(drive(env, 10), drive(again, 10))


class Slow(gymnasium.Env):
    """An episode of 2 steps; every reset but an instance's first waits for `gate`."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made: list = []

    def __init__(self, gate: threading.Event) -> None:
        self._gate, self._number, self._resets, self._step = gate, len(self.made), 0, 0
        self.made.append(self)

    def reset(self, *, seed=None, options=None):
        if self._resets:
            assert self._gate.wait(60.0)
        self._resets, self._step = self._resets + 1, 0
        return np.array([self._number, 0], np.float32), {}

    def step(self, action):
        self._step += 1
        return np.array([self._number, self._step], np.float32), 1.0, self._step == 2, False, {}


def test_swap_does_not_wait_for_a_reset_and_takes_turns():
    gate = threading.Event()
    Slow.made.clear()
    env = GymnasiumEnvironment(lambda: Slow(gate), 1, {"game": "slow"}, reset="swap")
    env.reset(0)
    rows = drive(env, 6)  # the second instance plays while the first waits at the gate
    assert [step.observation[0].tolist() for step in rows] == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert [int(step.valid[0]) for step in rows] == [0, 1, 1, 0, 1, 1]
    timer = threading.Timer(0.05, gate.set)
    timer.start()
    assert drive(env, 1)[0].observation.tolist() == [[0, 0]]  # not ready: the swap waited
    env.close()
    timer.join()


def test_in_pause_resets_while_others_work_and_the_next_step_waits():
    gate = threading.Event()
    Slow.made.clear()
    env = GymnasiumEnvironment(lambda: Slow(gate), 2, {"game": "slow"}, reset="in-pause")
    env.reset(0)
    drive(env, 2)
    env.recv()
    env.reset_ended()  # comes back although no reset can go on
    assert not gate.is_set()
    env.send(np.zeros(2, np.int32))
    timer = threading.Timer(0.05, gate.set)
    timer.start()
    assert env.recv().observation.tolist() == [[0, 0], [1, 0]]
    env.close()
    timer.join()


def test_swap_is_the_same_on_every_run():
    runs = []
    for _ in range(2):
        env = make("ddrl/Catch-v0", 4, "swap")
        env.reset(3)
        drive(env, 25)
        env.reset(3)  # with resets on their way
        runs.append(drive(env, 80))
        assert len(env.pop_episodes()) > 20 and not env.can_save_state
        env.close()
    assert_same(*runs)
    starts = [[row[0] for row in rows[::10]] for rows in by_environment(runs[0]).values()]
    assert len({tuple(one) for one in starts}) > 1
    assert any(one[0] != one[1] for one in starts), "both instances play the same episodes"
    simulator = env._simulators[0]
    assert isinstance(simulator, SwappingSimulator) and simulator.env is not simulator._spare


def test_the_native_path_and_evaluation():
    with pytest.raises(UsageError, match="--reset swap: .*'nature' runs in ale-py's emulator threads"):
        make("breakout", 1, "swap")
    assert make("breakout", 1, "swap", training=False).stamp["backend"] == "native"
    env = make("ddrl/Catch-v0", 1, "in-pause", training=False)
    env.reset(0)
    assert sum(step.terminated[0] for step in drive(env, 40)) == 4


def test_smaller_batches_take_turns():
    env, whole = make("ddrl/Catch-v0", 4, "at-once", batch_size=3), make("ddrl/Catch-v0", 4, "at-once")
    env.reset(5)
    whole.reset(5)
    rows = drive(env, 40)
    assert [step.env_id.tolist() for step in rows[:4]] == [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]
    full = by_environment(drive(whole, 40))
    for i, row in by_environment(rows).items():
        assert len(row) == 30 and row == full[i][:30]


def test_players_share_episodes_and_score():
    env = make("ddrl-test/Pair-v0", 2, "at-once", batch_size=1)
    assert (env.num_envs, env.batch_size, env.players) == (4, 2, 2)
    env.reset(0)
    rows = []
    for k in range(10):
        step = env.recv()
        rows.append(step)
        env.send(np.array([k % 4, 3], np.int32))
    assert [step.env_id.tolist() for step in rows[:3]] == [[0, 1], [2, 3], [0, 1]]
    assert rows[2].observation.tolist() == [[0, 1], [1, 1]] and rows[2].reward.tolist() == [0.0, 13.0]
    assert rows[3].reward.tolist() == [1.0, 13.0]
    assert env.pop_episodes() == [EpisodeEnd(3.0, 3, 0), EpisodeEnd(3.0, 3, 2)]
