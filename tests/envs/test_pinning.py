"""Simulator threads and processes on the cores that were asked for, and a clear line where that fails."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.gymnasium_environment import GymnasiumEnvironment
from ddrl.envs.pinning import check_cores, new_threads_pinned, pin_thread, process_cores
from ddrl.errors import UsageError

CORES = sorted(process_cores())


def allowed(task: Path) -> str:
    """The kernel's list of the cores of a thread."""
    return re.search(r"^Cpus_allowed_list:\s*(\S+)$", (task / "status").read_text(), re.MULTILINE).group(1)


def threads() -> set[Path]:
    return set(Path("/proc/self/task").iterdir())


def in_thread(work) -> None:
    """Runs in a thread of its own, whose mask may change."""
    raised = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def test_native_threads_one_core_each():
    before = threads()
    config = EnvironmentConfig(game="breakout", pin_simulators=True)
    env = make_environment(config, 4, threads=2, cores=CORES[:2])
    made = sorted(threads() - before, key=lambda task: int(task.name))
    assert [allowed(task) for task in made] == [str(CORES[k % len(CORES[:2])]) for k in range(2)]
    assert os.sched_getaffinity(0) == set(CORES)  # the maker's own mask is as before
    env.reset(0)
    assert env.recv().observation.any()


def test_without_the_option_nothing_is_pinned():
    before = threads()
    env = make_environment(EnvironmentConfig(game="breakout"), 1, cores=CORES[:1])
    assert {frozenset(os.sched_getaffinity(int(task.name))) for task in threads() - before} == {frozenset(CORES)}
    env.close()


def test_the_thread_that_receives():
    def work() -> None:
        config = EnvironmentConfig(game="ddrl/Catch-v0", pin_simulators=True)
        env = make_environment(config, 2, cores=CORES[-1:])
        env.reset(0)
        assert os.sched_getaffinity(0) == set(CORES)
        env.recv()
        assert os.sched_getaffinity(0) == {CORES[-1]}

    in_thread(work)
    assert os.sched_getaffinity(0) == set(CORES)


class Noting(gymnasium.Env):
    """Notes the cores of the threads that reset it and its copies."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)
    cores: ClassVar[list[set[int]]] = []

    def reset(self, *, seed=None, options=None):
        self.cores.append(os.sched_getaffinity(0))
        return np.zeros(2, np.float32), {}


def test_the_thread_that_resets_has_all_cores_beside_a_pinned_one():
    def work() -> None:
        env = GymnasiumEnvironment(Noting, 1, {"game": "noting"}, reset="swap", core=CORES[-1])
        env.reset(0)
        env.recv()
        env.close()

    in_thread(work)
    assert sorted(map(sorted, Noting.cores), key=len) == [CORES[-1:], CORES]


def test_processes():
    config = EnvironmentConfig(game="ddrl/Catch-v0", pin_simulators=True, simulator_processes=2)
    env = make_environment(config, 2)
    pids = [process._process.pid for process in env._processes]
    assert [os.sched_getaffinity(pid) for pid in pids] == [{CORES[k % len(CORES)]} for k in range(2)]
    env.close()


def test_a_core_outside_the_mask():
    missing = max(CORES) + 1
    line = rf"--pin-simulators: core {missing} is not one that this process may use \({CORES[0]}.*leave the opt"
    for game in ("breakout", "ddrl/Catch-v0"):
        config = EnvironmentConfig(game=game, pin_simulators=True)
        with pytest.raises(UsageError, match=line):
            env = make_environment(config, 1, cores=[missing])
            env.reset(0)
            env.recv()
    with pytest.raises(UsageError, match=line):
        check_cores([CORES[0], missing])


def test_what_the_kernel_refuses_or_ignores(monkeypatch):
    def refuse(thread, cores):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(UsageError, match=f"the kernel refused core {CORES[0]}: Invalid argument; leave"):
        pin_thread(CORES[0])
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {CORES[0], 77})
    with pytest.raises(UsageError, match=f"asked for core {CORES[0]}, the kernel gave {CORES[0]}, 77"):
        pin_thread(CORES[0])


def test_no_thread_to_pin():
    with pytest.raises(UsageError, match="no simulator thread was found"), new_threads_pinned(CORES[:1]):
        np.zeros(1)
    assert os.sched_getaffinity(0) == set(CORES)
