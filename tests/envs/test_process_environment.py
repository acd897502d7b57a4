"""Simulators in processes of their own: the same rows to the bit, and what happens when one fails."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

import tests.envs.scripted  # noqa: F401 - registers its games
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.process_environment import ProcessEnvironment
from ddrl.errors import UsageError
from tests.envs.driving import assert_same, by_environment, drive


@pytest.fixture
def make():
    """Environments that are closed after the test, whose processes are gone then."""
    made = []

    def make(game: str, num_envs: int, processes: int, batch_size: int = 0, **fields):
        config = EnvironmentConfig(game=game, simulator_processes=processes, **fields)
        made.append(make_environment(config, num_envs, batch_size=batch_size))
        return made[-1]

    yield make
    for env in made:
        env.close()
        for process in getattr(env, "_processes", []):
            assert process._process.returncode is not None


@pytest.fixture
def tests_in_processes(tmp_path, monkeypatch):
    """The games of these tests are there in simulator processes, too."""
    (tmp_path / "sitecustomize.py").write_text("import tests.envs.scripted\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))


def test_rows_are_those_of_one_thread(make):
    fields = {"random_start_steps": 6, "reset": "in-pause"}
    apart, together = make("ddrl/Catch-v0", 4, 2, **fields), make("ddrl/Catch-v0", 4, 0, **fields)
    assert isinstance(apart, ProcessEnvironment) and apart.stamp["simulator_processes"] == 2
    for _ in range(2):  # the second reset comes while a step is on its way
        rows = []
        for env in (apart, together):
            env.reset(3)
            steps = drive(env, 25)
            steps.append(env.recv())
            env.reset_ended()
            env.send(np.zeros(4, np.int32))
            rows.append(steps + drive(env, 12))
        assert_same(*rows)
        ends = [sorted(env.pop_episodes()) for env in (apart, together)]
        assert ends[0] == ends[1]
    with pytest.raises(RuntimeError, match="send called where recv is due"):
        apart.send(np.zeros(4, np.int32))
    assert any(step.terminated.any() for step in rows[0][26:])


def test_continuous_actions_and_smaller_batches(make):
    env, whole = make("Pendulum-v1", 4, 2, batch_size=2), make("Pendulum-v1", 4, 0)
    assert env.action_space == whole.action_space and env.batch_size == 2
    rows: list = []
    env.reset(1)
    whole.reset(1)
    parts, steps, seen = [], [], set()
    while len(parts) < 40 or seen != {0, 1, 2, 3}:  # a process may be slow to begin
        assert len(parts) < 100_000
        parts.append(env.recv())
        seen |= set(parts[-1].env_id.tolist())
        env.send(np.full((2, 1), 7.0, np.float32))
    rows.append(by_environment(parts))
    while len(steps) < max(map(len, rows[0].values())):
        steps.append(whole.recv())
        whole.send(np.full((4, 1), 7.0, np.float32))
    rows.append(by_environment(steps))
    for i, row in rows[0].items():
        assert row == rows[1][i][: len(row)]
    with pytest.raises(ValueError, match="finite"):
        env.recv()
        env.send(np.zeros(2, np.float32))


def test_the_options_of_a_game_are_there_in_its_processes(make):
    options = ("size=6", "max_episode_steps=4")
    for processes in (0, 2):
        env = make("ddrl/DeepSea-v0", 2, processes, game_options=options)
        assert env.observation_shape == (1, 6, 6)
        assert (env.stamp["game_options"], env.stamp["max_agent_steps"]) == (list(options), 4)
        env.reset(0)
        steps = drive(env, 5)
        assert steps[-1].truncated.all() and not steps[-2].truncated.any()


def test_a_process_that_dies(make):
    env = make("ddrl/Catch-v0", 2, 2)
    env.reset(0)
    env.recv()
    process = env._processes[1]._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60.0)
    with pytest.raises(RuntimeError, match=f"simulator process {process.pid} ended with status -9"):
        env.send(np.zeros(2, np.int32))
        env.recv()


def test_a_signal_that_asks_a_job_to_stop_does_not_end_a_process(make):
    """Slurm sends it to all processes of a rank, which has to save first."""
    env = make("ddrl/Catch-v0", 2, 2)
    env.reset(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        for process in env._processes:
            os.kill(process._process.pid, number)
        env.recv()
        env.send(np.zeros(2, np.int32))
    assert env.recv().valid.all()


def test_what_a_process_refuses_is_said_here(make):
    with pytest.raises(UsageError, match="unknown game 'brakout'; did you mean breakout"):
        make("brakout", 1, 1)


def test_observations_are_of_the_shape_that_their_space_has(make, tests_in_processes):
    for processes in (0, 1):
        env = make("ddrl-test/Misshapen-v0", 2, processes)
        env.reset(0)
        drive(env, 1)
        with pytest.raises(UsageError, match=r"^ddrl-test/Misshapen-v0 gave .* of shape \(\), and .* has \(3,\)"):
            drive(env, 2)


def test_what_a_process_raises_is_said_here_with_all_its_lines(make, tests_in_processes):
    env = make("ddrl-test/Failing-v0", 1, 1)
    env.reset(0)
    env.recv()
    env.send(np.ones(1, np.int32))
    said = r"failed: ValueError: the engine says: / no such level / look at the manual \(scripted.py, line \d+\)$"
    with pytest.raises(RuntimeError, match=said):
        env.recv()


def test_an_episode_whose_score_is_no_number_is_one(make, tests_in_processes):
    env = make("ddrl-test/Failing-v0", 1, 1)
    env.reset(0)
    for _ in range(4):
        env.recv()
        env.send(np.zeros(1, np.int32))
    (episode,) = env.pop_episodes()
    assert np.isnan(episode.score) and episode.agent_steps == 3


def test_what_does_not_go_together(make):
    with pytest.raises(UsageError, match="--simulator-processes 2: must divide the 3 simulators of a group into equal"):
        make("ddrl/Catch-v0", 3, 2)
    with pytest.raises(
        UsageError, match="--simulator-processes 2: must divide the 4 simulators of a group .* the 1 of a query"
    ):
        make("ddrl/Catch-v0", 4, 2, batch_size=1)
    with pytest.raises(UsageError, match="--simulator-processes 1: Atari under the protocol 'nature'"):
        make("breakout", 1, 1)
    env = make("ddrl/Catch-v0", 1, 3)
    assert not env.can_save_state and env.stamp["simulator_processes"] == 1
    for call in (env.get_state, lambda: env.set_state({})):
        with pytest.raises(UsageError, match="reset it at checkpoints"):
            call()
