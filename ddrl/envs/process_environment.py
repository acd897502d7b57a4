"""Simulators in processes of their own: Stooke and Abbeel 2018, section 4.1, for environments that hold the GIL.

Each process steps its share of the simulators in turn and leaves the rows in memory that both map; one line goes each
way per step. The processes end when their input does, so none outlives the one that made it.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddrl import plugin_modules
from ddrl.config import EnvironmentConfig
from ddrl.envs.base import InTurn, Step, environment_seeds
from ddrl.envs.pinning import check_cores
from ddrl.envs.spaces import check_actions
from ddrl.errors import UsageError
from ddrl.programs import python_command
from ddrl.structured import space_from, type_of
from ddrl.types import ActionSpace, EpisodeEnd

ANSWER_SECONDS = 300.0
"""Longest time of one step of a process, and of making its simulators."""


class Shape(NamedTuple):
    """What a process says of its simulators, as JSON.

    Attributes:
        rows: number of rows of all its simulators together.
        players: rows of one simulator.
        observation_shape: shape of the observation of one row.
        observation_type: type of the observation of one row, by `ddrl.structured.type_text`.
        actions: the action space of a row, by `ddrl.structured.space_facts`.
        stamp: stamp of the environment.
    """

    rows: int
    players: int
    observation_shape: list[int]
    observation_type: str
    actions: dict
    stamp: dict

    @property
    def action_space(self) -> ActionSpace:
        """The action space of one row."""
        return space_from(self.actions)


class SharedRows(NamedTuple):
    """Views of the memory of one process: what `Step` has, the actions, and the episodes that ended.

    Attributes:
        finished: <float64>[rows, 2] score and agent steps of the episode that ended with the row; else NaN.
    """

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    life_lost: np.ndarray
    finished: np.ndarray
    action: np.ndarray


def map_rows(descriptor: int, shape: Shape) -> SharedRows:
    """The memory behind `descriptor`, made as large as it must be."""
    rows, space = shape.rows, shape.action_space
    flag = ((rows,), np.dtype(np.bool_))
    arrays: list[tuple[tuple[int, ...], np.dtype]] = [
        ((rows, *shape.observation_shape), type_of(shape.observation_type)),
        ((rows,), np.dtype(np.float32)),
        *[flag] * 4,
        ((rows, 2), np.dtype(np.float64)),
        ((rows, *space.action_shape), space.action_dtype),
    ]
    sizes = [-(-int(np.prod(size)) * dtype.itemsize // 64) * 64 for size, dtype in arrays]
    os.ftruncate(descriptor, sum(sizes))
    memory = mmap.mmap(descriptor, sum(sizes))
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return SharedRows(*(np.ndarray(size, dtype, memory, start) for (size, dtype), start in zip(arrays, starts)))


class _Process:
    """One process and the rows that it shares."""

    def __init__(self, config: EnvironmentConfig, num_envs: int, first: int, core: int | None, trial: bool) -> None:
        self._memory = os.memfd_create("ddrl-simulators")
        settings = {
            "plugins": plugin_modules.loaded(),
            "config": dataclasses.asdict(config),
            "num_envs": num_envs,
            "first": first,
            "core": core,
            "trial": trial,
            "memory": self._memory,
        }
        self._process = subprocess.Popen(
            [*python_command("ddrl.envs.simulator_process"), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=[self._memory],
            env=_environment(),
        )
        assert self._process.stdin and self._process.stdout, "both are pipes"
        self._commands, self._answers = self._process.stdin, self._process.stdout
        self._read = b""
        self.rows: SharedRows  # there once shape() has mapped them

    @property
    def answers(self) -> int:
        """The descriptor that its answers are read from."""
        return self._answers.fileno()

    def shape(self) -> Shape:
        """Waits for what the process says of its simulators, and maps their rows."""
        shape = Shape(**self.answer())
        self.rows = map_rows(self._memory, shape)
        return shape

    def tell(self, command: dict) -> None:
        """Sends a command."""
        try:
            self._commands.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError:
            self._lost()

    def answer(self) -> dict:
        """The answer to the oldest command without one.

        Raises UsageError that the process raised; RuntimeError when it fails, dies, or is silent.
        """
        while b"\n" not in self._read:
            if not select.select([self.answers], [], [], ANSWER_SECONDS)[0]:
                raise RuntimeError(f"simulator process {self._process.pid} did not answer for {ANSWER_SECONDS:.0f} s")
            got = os.read(self.answers, 1 << 16)
            if not got:
                self._lost()
            self._read += got
        line, self._read = self._read.split(b"\n", 1)
        answer = json.loads(line)
        if "usage" in answer:
            raise UsageError(answer["usage"])
        if "failed" in answer:
            raise RuntimeError(f"simulator process {self._process.pid} failed: {answer['failed']}")
        return answer

    def close(self) -> None:
        """Ends the process by closing its input; kills it if it does not end then."""
        self._commands.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _lost(self) -> None:
        status = self._process.wait(10.0)
        raise RuntimeError(f"simulator process {self._process.pid} ended with status {status}; see its messages")


class ProcessEnvironment(InTurn):
    """`num_envs` simulators in `processes` processes; a process steps its own one after the other.

    A step begins with send. recv gives the rows of the processes that are ready first, `batch_size` simulators.

    Args:
        config: as in make_environment; step times are not added here.
        num_envs: simulators, a multiple of `processes`.
        batch_size: simulators per recv (0: all), a multiple of those of a process.
        cores: processes are pinned to these in turn (none: they are not pinned).
        trial: a light game is only tried, as in make_for_trial.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        num_envs: int,
        processes: int,
        *,
        batch_size: int,
        cores: Sequence[int],
        trial: bool,
    ) -> None:
        check_cores(cores)
        each, batch_size = num_envs // processes, batch_size or num_envs
        if num_envs % processes or batch_size % each:
            raise UsageError(
                f"--simulator-processes {processes}: must divide the {num_envs} simulators of a group into equal "
                f"parts, and the {batch_size} of a query into whole ones"
            )
        self._processes: list[_Process] = []
        try:
            for k in range(processes):
                core = cores[k % len(cores)] if cores else None
                self._processes.append(_Process(config, each, k * each, core, trial))
            shape = [process.shape() for process in self._processes][0]  # noqa: RUF015 - each must have answered
        except BaseException:
            self.close()
            raise
        self.players, self._each = shape.players, shape.rows
        self.num_envs, self.batch_size = num_envs * shape.players, batch_size * shape.players
        self.observation_shape = tuple(shape.observation_shape)
        self.observation_dtype, self.action_space = type_of(shape.observation_type), shape.action_space
        self.stamp = {**shape.stamp, "simulator_processes": processes}
        self._finished: list[EpisodeEnd] = []
        self._waiting: list[int] = []  # processes whose simulators step
        self._received: list[int] = []  # processes whose rows were received last

    def reset(self, seed: int) -> None:
        """New games in all processes."""
        environment_seeds(seed, 0)
        self._drain()
        for process in self._processes:
            process.tell({"do": "reset", "seed": seed})
        self._waiting, self._received, self._due = list(range(len(self._processes))), [], "recv"

    def recv(self) -> Step:
        """Waits for the processes until batch_size rows are there."""
        self._check_due("recv")
        ready: list[int] = []
        while len(ready) * self._each < self.batch_size:
            ready += self._ready(self.batch_size // self._each - len(ready))
        self._received, self._due = sorted(ready), "send"
        parts = [self._processes[k].rows for k in self._received]
        env_id = np.concatenate([k * self._each + np.arange(self._each, dtype=np.int32) for k in self._received])
        fields = [np.concatenate([getattr(rows, name) for rows in parts]) for name in Step._fields[1:]]
        self._finish(env_id, np.concatenate([rows.finished for rows in parts]))
        return Step(env_id, *fields)

    def send(self, actions: np.ndarray) -> None:
        """Take actions <int32>[batch_size] or [batch_size, K], or <float32>[batch_size, A], clipped to the bounds.

        Raises ValueError for an action out of range or not finite.
        """
        self._check_due("send")
        actions = check_actions(actions, self.action_space, self.batch_size)
        for k, part in zip(self._received, np.split(actions, len(self._received))):
            self._processes[k].rows.action[:] = part
            self._processes[k].tell({"do": "step"})
        self._waiting += self._received
        self._received, self._due = [], "recv"

    def reset_ended(self) -> None:
        """The processes begin to reset the simulators that idle; called when acting pauses and send is due."""
        self._check_due("send", "reset_ended")
        for k in self._received:
            self._processes[k].tell({"do": "reset_ended"})
        for k in self._received:
            self._processes[k].answer()

    def pop_episodes(self) -> list[EpisodeEnd]:
        """Whole games finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()

    def _ready(self, at_most: int) -> list[int]:
        """Takes processes that have answered, at least one and `at_most` many, out of `_waiting`, and returns them."""
        answers = {self._processes[k].answers: k for k in self._waiting}
        readable, _, _ = select.select(list(answers), [], [], ANSWER_SECONDS)
        if not readable:
            raise RuntimeError(f"no simulator process answered for {ANSWER_SECONDS:.0f} s")
        # In the order of their sends, so that no process is passed over for ever.
        ready = sorted((answers[descriptor] for descriptor in readable), key=self._waiting.index)[:at_most]
        for k in ready:
            self._processes[k].answer()
            self._waiting.remove(k)
        return ready

    def _finish(self, env_id: np.ndarray, finished: np.ndarray) -> None:
        for row in np.flatnonzero(~np.isnan(finished[:, 1])):  # a score may be NaN
            score, steps = finished[row]
            self._finished.append(EpisodeEnd(float(score), int(steps), int(env_id[row])))

    def _drain(self) -> None:
        for k in self._waiting:
            self._processes[k].answer()
        self._waiting = []


def _environment() -> dict[str, str]:
    """Environment variables for a process that is no rank: one thread, and this project importable from anywhere."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
