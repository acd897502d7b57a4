"""EnvPool beside the Gymnasium path: the same frames, spaces, episodes and masks; seeds; what it lacks."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.gymnasium_path import make_atari
from ddrl.envs.protocols import NATURE
from ddrl.envs.spaces import RANDOM_START, check_actions, random_action
from ddrl.errors import UsageError
from ddrl.options import train_options
from ddrl.programs import python_command
from ddrl.types import Discrete, Machine
from tests.envs.driving import assert_same, by_environment, drive, own_actions

pytest.importorskip("envpool", reason='EnvPool is not installed: pip install "ddrl[envpool]"')

from ddrl.envs.envpool_environment import EnvPoolEnvironment
from ddrl.envs.envpool_games import envpool_games, find_task


def make(game: str, num_envs: int = 1, batch_size: int = 0, threads: int = 1, **fields):
    config = EnvironmentConfig(game=game, backend="envpool", **fields)
    return make_environment(config, num_envs, batch_size=batch_size, threads=threads)


@pytest.mark.parametrize(
    ("rom", "changes"),
    [
        ("breakout", {}),  # with a game's end, and lives lost
        ("breakout", {"max_agent_steps": 50}),
        ("asterix", {"full_action_space": True, "fire_reset": False, "frame_skip": 3}),
        ("space_invaders", {"color": True, "stack": 2}),
    ],
)
def test_atari_equals_the_gymnasium_path(rom, changes):
    # One no-op at most, and FIRE counts as one: so nothing is drawn, but whether Asterix gets its no-op.
    protocol = dataclasses.replace(NATURE, noop_max=1, **changes)
    ours, other = EnvPoolEnvironment(rom, protocol, 1), make_atari(rom, protocol, 1)
    assert ours.action_space == other.action_space and ours.observation_shape == other.observation_shape
    ours.reset(0)
    other.reset(0 if rom != "asterix" else _seed_with_a_noop())
    for one, same in zip(drive(ours, 300), drive(other, 300)):
        assert np.array_equal(one.observation, same.observation) or one.terminated[0]
        for name in ("reward", "terminated", "truncated", "valid", "life_lost"):
            assert np.array_equal(getattr(one, name), getattr(same, name)), name
    assert ours.pop_episodes() == other.pop_episodes()


def _seed_with_a_noop() -> int:
    """That of a reset of the Gymnasium path whose first draw from 0 and 1 is 1."""
    from ddrl.envs.base import environment_seeds

    first = (np.random.default_rng(int(environment_seeds(seed, 1)[0])).integers(2) for seed in range(50))
    return next(seed for seed, draw in enumerate(first) if draw)


def _state_of(game: str, row: np.ndarray, env: gymnasium.Env) -> None:
    """Brings `env` to the state that a first observation shows."""
    row = row.astype(np.float64)
    if game == "Pendulum-v1":
        env.unwrapped.state = np.array([np.arctan2(row[1], row[0]), row[2]])
    elif game == "Acrobot-v1":
        env.unwrapped.state = np.array([np.arctan2(row[1], row[0]), np.arctan2(row[3], row[2]), row[4], row[5]])
    elif game in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0"):
        env.unwrapped.state = row
    else:  # MuJoCo shows no position along the ground, which nothing depends on
        positions, velocities = env.unwrapped.model.nq, env.unwrapped.model.nv
        row = np.concatenate([np.zeros(positions + velocities - len(row)), row])
        env.unwrapped.set_state(row[:positions], row[positions:])


def _beside(game: str, steps: int) -> tuple[list, list]:
    """Rows of EnvPool, and Gymnasium's step for each of them but the first, from the same state."""
    ours = make(game)
    ours.reset(5)
    rows = drive(ours, steps)
    env = gymnasium.make(game)
    env.reset(seed=0)
    _state_of(game, rows[0].observation[0], env)
    others = []
    for taken in range(steps - 1):
        actions = own_actions(ours.action_space, np.zeros(1, int), np.array([taken]))
        others.append(env.step(check_actions(actions, ours.action_space, 1)[0]))
        if others[-1][2] or others[-1][3]:
            break
    env.close()
    ours.close()
    return rows, others


@pytest.mark.parametrize(
    ("game", "length"),
    [
        ("CartPole-v1", None),  # it falls
        ("MountainCar-v0", 200),
        ("MountainCarContinuous-v0", 999),
        ("Pendulum-v1", 200),
        ("Acrobot-v1", 500),
        ("Hopper-v5", None),
        ("Walker2d-v5", None),
        ("InvertedPendulum-v5", None),
    ],
)
def test_an_episode_equals_gymnasiums(game, length):
    if game.endswith("v5"):
        pytest.importorskip("mujoco")
    rows, others = _beside(game, 1100)
    score, end = sum(other[1] for other in others), len(others)
    assert end == length if length else end < 100
    for row, other in zip(rows[1:], others):
        np.testing.assert_allclose(row.observation[0], other[0], atol=1e-3, rtol=1e-3)
        assert (row.terminated[0], row.truncated[0], row.valid[0]) == (other[2], other[3], True)
    np.testing.assert_allclose(sum(row.reward[0] for row in rows[1 : end + 1]), score, rtol=1e-4)
    after = rows[end + 1]  # the reset's own: its action was ignored
    assert (after.valid[0], after.reward[0], after.terminated[0], after.truncated[0]) == (False, 0.0, False, False)
    assert rows[end + 2].valid[0]


@pytest.mark.parametrize("game", ["HalfCheetah-v5", "Swimmer-v5"])
def test_the_dynamics_of_mujoco(game):
    pytest.importorskip("mujoco")
    rows, others = _beside(game, 20)  # contacts make more steps differ
    for row, other in zip(rows[1:], others):
        np.testing.assert_allclose(row.observation[0], other[0], atol=1e-3, rtol=1e-3)
        np.testing.assert_allclose(row.reward[0], other[1], atol=1e-3)


OTHERS = [game for game in envpool_games() if not game.startswith("dm_control/")]


@pytest.mark.parametrize("game", [*OTHERS, "breakout"])
def test_spaces_and_stamps_equal_the_gymnasium_paths(game):
    spec = None if game == "breakout" else gymnasium.spec(game)
    if spec is not None and "mujoco" in str(spec.entry_point):
        pytest.importorskip("mujoco")
    if spec is not None and "box2d" in str(spec.entry_point):
        pytest.importorskip("Box2D")
        pytest.importorskip("pygame")
    ours, other = make(game), make_environment(EnvironmentConfig(game=game), 1)
    assert (ours.observation_shape, ours.observation_dtype) == (other.observation_shape, other.observation_dtype)
    assert np.array_equal(_bounds(ours), _bounds(other))
    same = {name: value for name, value in other.stamp.items() if name in ours.stamp}
    assert {**same, "backend": "envpool"}.items() <= ours.stamp.items()
    assert ours.stamp["envpool"] and {"protocol", "game", "max_agent_steps"} <= set(same)
    json.dumps(ours.stamp)
    other.close()


def _bounds(env) -> np.ndarray:
    space = env.action_space
    return np.array([space.count] if isinstance(space, Discrete) else [space.low, space.high], np.float32)


TASKS = [game for game in envpool_games() if game.startswith("dm_control/")]


@pytest.mark.parametrize("game", TASKS)
def test_a_task_of_dm_control_has_the_entries_of_its_own(game):
    pytest.importorskip("shimmy")
    pytest.importorskip("dm_control")
    ours, other = make(game, 2), make_environment(EnvironmentConfig(game=game), 2)
    assert ours.observation_shape == other.observation_shape and ours.action_space == other.action_space
    ours.reset(1)
    steps = drive(ours, 3)
    assert all(np.isfinite(step.observation).all() and step.observation.dtype == np.float32 for step in steps)
    assert steps[1].valid.all() and (steps[1].reward >= 0).all()
    other.close()


@pytest.mark.parametrize("task", ["cheetah-run", "hopper-stand", "humanoid-walk", "reacher-easy"])
def test_the_dynamics_of_dm_control(task):
    pytest.importorskip("shimmy")
    pytest.importorskip("dm_control")
    game = f"dm_control/{task}-v0"
    ours, other = make(game), make_environment(EnvironmentConfig(game=game), 1)
    ours.reset(0)
    rows = drive(ours, 21)
    other.reset(0)
    other.recv()
    env = other._simulators[0].env
    _state_of_task(task, rows[0].observation[0].astype(np.float64), env.unwrapped._env)
    for taken, row in enumerate(rows[1:]):
        actions = own_actions(ours.action_space, np.zeros(1, int), np.array([taken]))
        observation, reward, *_ = env.step(check_actions(actions, ours.action_space, 1)[0])
        np.testing.assert_allclose(row.observation[0], observation, atol=1e-3, rtol=1e-3)
        np.testing.assert_allclose(row.reward[0], reward, atol=1e-4)
    other.close()


def _state_of_task(task: str, row: np.ndarray, env) -> None:
    """Brings a task of dm_control to the state that EnvPool's first observation shows."""
    physics = env.physics
    if task == "humanoid-walk":  # which shows no position, but that of another of its tasks begins alike
        other = make("dm_control/humanoid-run_pure_state-v0")
        other.reset(0)
        positions, velocities = np.split(other.recv().observation[0].astype(np.float64), [28])
    else:
        names = {"cheetah-run": (8, 9), "hopper-stand": (6, 7), "reacher-easy": (2, 2)}[task]
        shown, velocities = row[: names[0]], row[-names[1] :]
        positions = np.concatenate([np.zeros(physics.model.nq - len(shown)), shown])
    with physics.reset_context():
        physics.data.qpos[:], physics.data.qvel[:] = positions, velocities
    if task == "reacher-easy":
        target = physics.named.data.geom_xpos["finger", :2] + row[2:4]
        with physics.reset_context():
            physics.data.qpos[:], physics.data.qvel[:] = positions, velocities
            physics.named.model.geom_pos["target", :2] = target


def test_a_task_of_dm_control_is_cut_off_after_1000_steps():
    env = make("dm_control/cartpole-balance-v0", 2)
    assert env.observation_shape == (5,) and env.stamp["max_agent_steps"] == 1000
    env.reset(0)
    steps = drive(env, 1003)
    assert steps[1000].truncated.all() and not any(step.terminated.any() for step in steps)
    assert [k for k, step in enumerate(steps) if not step.valid.all()] == [0, 1001]
    assert [(e.agent_steps, e.env_id) for e in env.pop_episodes()] == [(1000, 0), (1000, 1)]


@pytest.mark.parametrize(
    "game", ["CartPole-v1", "HalfCheetah-v5", "dm_control/cheetah-run-v0", "LunarLander-v3", "pong"]
)
def test_same_seed_same_rows_and_rows_stay(game):
    env = make(game, 3, threads=2)
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
    assert len({tuple(rows[i]) for i in range(3)}) == 3
    again = make(game, 2)
    again.reset(7)
    fewer = by_environment(drive(again, 60))
    for i in range(
        2
    ):  # a simulator's seed depends on neither their number nor the threads, its actions here on its own
        assert fewer[i] == rows[i]


def test_smaller_batches_reproduce_each_environment():
    env = make("CartPole-v1", 4, batch_size=2, threads=2)
    runs = []
    for _ in range(2):  # the second reset comes while environments step
        env.reset(5)
        steps, taken = [], np.zeros(4, np.int64)
        while len(steps) < 3000 and not (len(steps) >= 60 and taken.all()):
            steps += drive(env, 1, taken)
        assert all(len(set(step.env_id.tolist())) == 2 for step in steps)
        runs.append(by_environment(steps))
    whole = make("CartPole-v1", 4)
    whole.reset(5)
    full = by_environment(drive(whole, max(len(row) for rows in runs for row in rows.values())))
    for rows in runs:
        assert set(rows) == {0, 1, 2, 3}
        assert all(row == full[i][: len(row)] and not row[0][4] for i, row in rows.items())


def test_each_one_takes_its_own_number_of_random_actions():
    env = make("Pendulum-v1", 3, random_start_steps=40)
    env.reset(9)
    rows = drive(env, 3)
    numbers = []
    alone = make("Pendulum-v1", 3)
    alone.reset(9)
    generators = [np.random.default_rng([9, i, RANDOM_START]) for i in range(3)]
    numbers = [int(generator.integers(41)) for generator in generators]
    actions = [[random_action(env.action_space, generators[i]) for _ in range(numbers[i])] for i in range(3)]
    for k in range(max(numbers) + 1):
        step = alone.recv()
        for i in np.flatnonzero(np.array(numbers) == k):
            assert np.array_equal(step.observation[i], rows[0].observation[i]), i
        alone.send(np.stack([each[k] if k < len(each) else np.zeros(1, np.float32) for each in actions]))
    assert len(set(numbers)) == 3
    assert not rows[0].valid.any() and rows[1].valid.all()


def test_random_actions_through_the_ends_of_games():
    env = EnvPoolEnvironment("breakout", dataclasses.replace(NATURE, max_agent_steps=5), 6, random_start_steps=5)
    env.reset(11)
    numbers = [int(np.random.default_rng([11, i, RANDOM_START]).integers(6)) for i in range(6)]
    assert {0, 5} <= set(numbers), "the seed gives no simulator that begins last, or none that ends an episode"
    rows = by_environment(drive(env, 14))
    for i, number in enumerate(numbers):
        ends = [k for k, r in enumerate(rows[i]) if r[3]]
        first = 5 - number or 5  # after 5 random steps the episode is over, and the next one begins
        assert ends[:2] == [first, first + 6], (i, number)
        resets = [0, *(end + 1 for end in ends)]
        assert [k for k in range(14) if not rows[i][k][4]] == [k for k in resets if k < 14], (i, number)
    assert {e.agent_steps for e in env.pop_episodes()} == {5}


def test_smaller_batches_have_no_random_start():
    with pytest.raises(UsageError, match=r"--random-start-steps 5: .*use --random-start-steps 0 or --predict-batch 0"):
        make("CartPole-v1", 2, batch_size=1, random_start_steps=5)


def test_threads_on_the_cores_that_were_asked_for():
    cores = sorted(os.sched_getaffinity(0))[:1]
    before = set(Path("/proc/self/task").iterdir())
    env = make("CartPole-v1", 2, threads=2, pin_simulators=True)
    env.reset(0)
    made = set(Path("/proc/self/task").iterdir()) - before
    masks = [
        re.search(r"^Cpus_allowed_list:\s*(\S+)$", (t / "status").read_text(), re.MULTILINE).group(1) for t in made
    ]
    assert len(made) >= 2 and all(mask.isdigit() for mask in masks)
    assert str(cores[0]) in masks and os.sched_getaffinity(0) >= set(cores)


def test_what_it_does_not_have():
    tasks = ("dm_control/ball_in_cup-catch-v0", "dm_control/cartpole-fly-v0", "HumanoidStandup-v5", "BigfishEasy-v0")
    for game in (*tasks, "ddrl/Catch-v0", "CartPole-v7", "football/academy_corner"):
        line = (
            f"--backend envpool: '{game}' is not one of its games, which `python -m ddrl.envs` lists; leave --backend "
            "out"
        )
        with pytest.raises(UsageError, match=line):
            make(game)
    assert find_task("Breakout-v5", NATURE).name == find_task("breakout", NATURE).name == "Breakout-v5"
    assert find_task("dm_control/point_mass-easy-v0", NATURE).name == "PointMassEasy-v1"


def test_evaluation_is_on_the_same_backend():
    config = EnvironmentConfig(game="breakout", backend="envpool")
    env = make_environment(config, 2, training=False)
    assert env.stamp["backend"] == "envpool" and env.stamp["repeat_fire_after"] == 30
    assert make_environment(config, 2).stamp["repeat_fire_after"] == 0


def test_its_state_cannot_be_saved_and_a_closed_one_says_so():
    env = make("CartPole-v1")
    assert not env.can_save_state
    for call in (env.get_state, lambda: env.set_state({})):
        with pytest.raises(UsageError, match="cannot"):
            call()
    with pytest.raises(RuntimeError, match="recv called where reset is due"):
        env.recv()
    env.reset(0)
    env.recv()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.send(np.zeros(1, np.int32))


@pytest.mark.slow
def test_a_run_trains_and_its_resume_keeps_the_backend(tmp_path):
    run = tmp_path / "run"
    line = "train ppo --preset smoke --game CartPole-v1 --backend envpool --max-updates 8 --no-evaluator --no-video"
    command = [*python_command("ddrl.cli"), *line.split(), "--run-dir", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "config.json").read_text())["environment"]["backend"] == "envpool"
    assert json.loads((run / "result.json").read_text())["update"] == 8
    resumed = train_options.parse(["--resume", str(run), "--max-updates", "16"], Machine(2, 16 * 10**9)).config
    assert (resumed.environment.backend, resumed.run.max_updates) == ("envpool", 16)
