"""Drawn step times: the distribution, the streams, and what recv waits for. A false clock, so nothing sleeps."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.algorithms.ba3c import smoke
from ddrl.builders.agent import make_environments
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment, step_time
from ddrl.envs.step_time import GammaTimes
from ddrl.errors import UsageError
from ddrl.types import Machine
from tests.envs.driving import assert_same, drive

MACHINE = Machine(2, 16 * 10**9)


class Clock:
    """Time passes by sleeping only."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(step_time, "time", Clock())
    return step_time.time


def make(num_envs: int, mean_ms: float, cv: float, **options):
    config = EnvironmentConfig(game="ddrl/Catch-v0", step_time_mean_ms=mean_ms, step_time_cv=cv)
    return make_environment(config, num_envs, **options)


@pytest.mark.parametrize("cv", [0.25, 1.0, 2.0])
def test_mean_and_deviation(cv):
    times = GammaTimes(0.003, cv, 200)
    times.restart(4)
    drawn = np.concatenate([times.draw(np.arange(200)) for _ in range(100)])
    assert abs(drawn.mean() / 0.003 - 1) < 0.04 * max(cv, 1) and abs(drawn.std() / drawn.mean() - cv) < 0.1 * cv
    assert drawn.min() >= 0.0


def test_streams_do_not_depend_on_the_grouping():
    together, apart = GammaTimes(1.0, 1.0, 3), GammaTimes(1.0, 1.0, 3)
    together.restart(7)
    apart.restart(7)
    whole = np.array([together.draw(np.arange(3)) for _ in range(150)])
    alone = [[apart.draw(np.array([i]))[0] for _ in range(150)] for i in (2, 0, 1)]
    assert np.array_equal(whole[:, [2, 0, 1]].T, alone)
    assert len(np.unique(whole)) == 450
    together.go_on(7, np.array([100, 3, 64]))
    assert together.draw(np.arange(3)).tolist() == [whole[100, 0], whole[3, 1], whole[64, 2]]
    together.restart(8)
    assert not np.array_equal(together.draw(np.arange(3)), whole[0])


def test_recv_waits_for_the_slowest_row(clock):
    env, times = make(3, 20.0, 1.0), GammaTimes(0.020, 1.0, 3)
    env.reset(5)
    times.restart(5)
    began = clock.now
    env.recv()
    assert clock.now == began  # a reset takes no drawn time
    for _ in range(70):
        began = clock.now
        env.send(np.zeros(3, np.int32))
        env.recv()
        assert clock.now - began == pytest.approx(times.draw(np.arange(3)).max())


def test_smaller_batches_take_who_is_done_first(clock):
    env, times = make(4, 20.0, 1.0, batch_size=1), GammaTimes(0.020, 1.0, 4)
    env.reset(5)
    times.restart(5)
    end = np.zeros(4)
    for i in range(4):
        assert env.recv().env_id.tolist() == [i]
        env.send(np.zeros(1, np.int32))
        end[i] = clock.now + times.draw(np.array([i]))[0]
    for _ in range(100):
        row = env.recv().env_id
        assert row.tolist() == [int(end.argmin())] and clock.now == pytest.approx(end.min())
        env.send(np.zeros(1, np.int32))
        end[row] = clock.now + times.draw(row)


def test_rows_and_saved_state_are_those_of_the_environment(clock):
    env, plain = make(3, 20.0, 0.5), make_environment(EnvironmentConfig(game="ddrl/Catch-v0"), 3)
    env.reset(2)
    plain.reset(2)
    assert_same(drive(env, 30), drive(plain, 30))
    assert env.pop_episodes() == plain.pop_episodes()
    state, again = env.get_state(), make(3, 20.0, 0.5)
    again.set_state(state)
    ends = []
    for one in (env, again):
        one.recv()
        began = clock.now
        for _ in range(20):
            one.send(np.zeros(3, np.int32))
            one.recv()
        ends.append(clock.now - began)
    assert ends[0] == pytest.approx(ends[1])


def test_real_sleep_and_native_rows():
    config = EnvironmentConfig(step_time_mean_ms=5.0)
    env = make_environment(config, 2, batch_size=1)
    assert env.stamp["step_time_mean_ms"] == 5.0 and env.stamp["backend"] == "native"
    env.reset(0)
    drive(env, 3)
    began = step_time.time.monotonic()
    drive(env, 5)
    assert step_time.time.monotonic() - began >= 0.010  # two rows at most were on their way


def test_evaluation_takes_no_drawn_time():
    env = make_environment(EnvironmentConfig(game="ddrl/Catch-v0", step_time_mean_ms=9.0), 1, training=False)
    assert "step_time_mean_ms" not in env.stamp


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step_time_mean_ms": -1.0}, "--step-time-mean-ms -1.0: must be a finite number of at least 0"),
        ({"step_time_cv": 1.0}, "--step-time-cv 1.0: there are no step times to vary; give --step-time-mean-ms"),
        ({"step_time_straggler": 0.5}, "--step-time-straggler 0.5: must be a finite number of at least 1.0"),
        ({"step_time_straggler": 2.0}, "--step-time-straggler 2.0: there are no step times to stretch"),
        ({"random_start_steps": -1}, "--random-start-steps -1"),
        ({"reset": "never"}, "--reset never: must be one of at-once, in-pause, swap"),
        ({"simulator_processes": -2}, "--simulator-processes -2"),
        ({"football_players": 2}, "--football-players 2: --game breakout is not football"),
        (
            {"game": "football/academy_corner", "football_players": 12},
            "--football-players 12: must be between 1 and 11",
        ),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(UsageError, match=message):
        EnvironmentConfig(**fields)


def test_the_last_worker_may_be_a_straggler():
    config = smoke("ddrl/Catch-v0", MACHINE).changed(
        environment={"step_time_mean_ms": 4.0, "step_time_straggler": 3.0}, exchange={"workers": 3}
    )
    means = [[env.stamp["step_time_mean_ms"] for env in make_environments(config, worker)] for worker in range(3)]
    assert means == [[4.0, 4.0], [4.0, 4.0], [12.0, 12.0]]


def test_one_worker_has_nobody_who_waits():
    config = smoke("ddrl/Catch-v0", MACHINE)
    with pytest.raises(UsageError, match=r"--step-time-straggler 2.0: there is no other worker"):
        config.changed(
            environment={"step_time_mean_ms": 4.0, "step_time_straggler": 2.0},
            exchange={"workers": 1, "parameter_servers": 0},
        )
