"""Jobs for the tests: started in a session of their own, found again by a mark, and never left behind."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from cluster.launch import find_mpirun, inspect_mpirun, mpirun_command, rank_environment
from ddrl import checkpoint, rundir
from ddrl.errors import UsageError
from ddrl.launch import local, supervisor
from ddrl.reporting import metrics
from tests.parallel import ranks_forked
from tests.parallel.light import LIGHT

HERE = Path(__file__).parent
MARK = "DDRL_TEST_MARK"
JOB_SECONDS = 250.0
NOISE = re.compile(r"WARNING: All log|[IWE]0000 ")  # of TensorFlow
needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="no mpirun on this machine")
CATCH = ("ba3c", "--preset", "smoke", "--minutes", "0")
"""A whole job on Catch. A count of updates or the test ends it, and no time, as machines differ."""
EXACT = (
    *CATCH, "--schedule", "synchronized", "--groups", "1", "--simulators", "8", "--batch-size", "64",
    "--clip-global-norm", "0", "--max-updates", "40", "--checkpoint-every-updates", "20", "--no-evaluator",
    "--discount-start", "0.5", "--learning-rate-updates", "80",
)  # fmt: skip
"""A job that is a function of its seed alone."""


class Job:
    """A program and all that it starts.

    Attributes:
        run_dir: of the training run, if it is one.
        output: standard output and errors, once it has ended.
    """

    def __init__(self, argv: list[str], run_dir: Path, environment: dict[str, str] | None = None):
        self.run_dir, self.output, self.mark = run_dir, "", uuid.uuid4().hex
        self._log = run_dir.parent / f"job-{self.mark}.txt"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"} | (environment or {}) | {MARK: self.mark},
                start_new_session=True,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        left = [] if self.process.poll() is None else self._left_after(20.0)
        for pid in marked(self.mark):
            kill(pid)
        self.process.wait(timeout=60.0)
        if error[0] is None:
            assert not left, f"processes left behind: {left}\n{self.output}"
            assert self.process.returncode != -signal.SIGKILL, "the test ended before its job"

    def wait(self, seconds: float = JOB_SECONDS) -> int:
        """The exit status; fails the test if the job does not end in time."""
        try:
            status = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end within {seconds:g} s:\n{self._text()}")
        self.output = self._text()
        return status

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = 180.0) -> None:
        """Waits until something is so, while the job runs."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the job ended before {what}:\n{self._text()}"
            assert time.monotonic() < end, f"no {what} within {seconds:g} s:\n{self._text()}"
            time.sleep(0.05)

    def wait_for_update(self, update: int) -> None:
        """Waits until the job has applied that many updates."""
        self.wait_for(
            lambda: any(line.get("update", 0) >= update for line in metrics.read_metrics(self.run_dir)),
            f"update {update}",
        )

    def rank(self, number: int) -> int:
        """Process id of a rank."""
        ranks = {env.get("OMPI_COMM_WORLD_RANK"): pid for pid, env in marked(self.mark).items()}
        return ranks[str(number)]

    def fork(self, number: int) -> int:
        """Process id of the fork that works for a rank, for SIGSTOP and SIGCONT, which nobody passes on to it."""
        pid = self.rank(number)
        return int(Path(marked(self.mark)[pid][ranks_forked.FORKS]).with_name(str(pid)).read_text())

    def _text(self) -> str:
        text = self._log.read_text(errors="replace")
        log = self.run_dir / rundir.LOG
        if log.exists():
            said = [line for line in log.read_text(errors="replace").splitlines() if not NOISE.match(line)]
            text += f"\n--- {log.name}:\n" + "\n".join(said)
        return text

    def _left_after(self, seconds: float) -> list[str]:
        """Command lines of what is still there; mpirun's ranks may take a moment to be gone."""
        end = time.monotonic() + seconds
        while (left := marked(self.mark)) and time.monotonic() < end:
            time.sleep(0.05)
        return [f"{pid}: {' '.join(command_of(pid))}" for pid in left]


def marked(mark: str) -> dict[int, dict[str, str]]:
    """Living processes that were started under a mark, with their environments."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                environ = Path("/proc", entry, "environ").read_bytes().decode(errors="replace")
                # Names of processes may end in half a letter.
                state = Path("/proc", entry, "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if f"{MARK}={mark}" in environ and state not in "ZX":
                pairs = (item.partition("=") for item in environ.split("\0"))
                found[int(entry)] = {name: value for name, _, value in pairs}
    return found


def command_of(pid: int) -> list[str]:
    """The words of a process' command line; none if the process has ended since it was found."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def kill(pid: int) -> None:
    """kill -9."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def train(run_dir: Path, *flags: str, program: str = "", environment: dict[str, str] | None = None) -> Job:
    """`ddrl train` without its plot; `program` (of this directory) takes the place of the ranks'."""
    return Job([sys.executable, str(HERE / "launcher.py"), *_launched(run_dir, flags, program)], run_dir, environment)


def _launched(run_dir: Path, flags: Sequence[str], program: str) -> list[str]:
    """Arguments of launcher.py."""
    return [program, *flags, *(() if "--resume" in flags else ("--run-dir", str(run_dir)))]


@functools.cache
def forked_ddrl() -> str:
    """A directory whose bin/ddrl starts at once, and computes without TensorFlow."""
    socket = _forks(light=True)[0]
    command = Path(socket).with_name("bin") / "ddrl"
    command.parent.mkdir()
    words = shlex.join([f"{ranks_forked.FORKS}={socket}", *ranks_forked.command(ranks_forked.COMMAND)])
    command.write_text(f'#!/bin/sh\nexec env {words} "$@"\n')
    command.chmod(0o755)
    return str(command.parents[1])


@functools.cache
def _forks(light: bool = False) -> tuple[str, subprocess.Popen]:
    """The socket of a process that forks ranks, see tests/parallel/forks.py; it ends with this one."""
    socket = Path(tempfile.mkdtemp(prefix="ddrl-forks-")) / "socket"
    environment = dict(os.environ) | rank_environment(as_root=False) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {LIGHT: "1"} if light else {}
    process = subprocess.Popen([sys.executable, HERE / "forks.py", socket], stdin=subprocess.PIPE, env=environment)
    atexit.register(shutil.rmtree, socket.parent, ignore_errors=True)
    end = time.monotonic() + 250.0
    while not socket.exists():
        assert process.poll() is None and time.monotonic() < end, "no process that forks ranks"
        time.sleep(0.05)
    return str(socket), process


def forked_train(run_dir: Path, *flags: str, program: str = "", environment: dict[str, str] | None = None) -> Job:
    """`train` by a launcher and ranks that start at once."""
    return _forked("launcher.py", _launched(run_dir, flags, program), run_dir, environment)


def _forked(name: str, arguments: Sequence[str], run_dir: Path, environment: dict[str, str] | None) -> Job:
    argv, environment = [*ranks_forked.command(name), *arguments], environment or {}
    return Job(argv, run_dir, {ranks_forked.FORKS: _forks(LIGHT in environment)[0]} | environment)


def light_train(
    run_dir: Path, *flags: str, program: str = "ranks_light.py", environment: dict[str, str] | None = None
) -> Job:
    """`train` by ranks that compute without TensorFlow: they start in a second, and learn nothing."""
    return train(run_dir, *flags, program=program, environment={LIGHT: "1"} | (environment or {}))


def forked_light_train(
    run_dir: Path, *flags: str, program: str = "ranks_light.py", environment: dict[str, str] | None = None
) -> Job:
    """`light_train` as `forked_train`."""
    return forked_train(run_dir, *flags, program=program, environment={LIGHT: "1"} | (environment or {}))


def use_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the ranks of a launcher in this process are forks."""
    monkeypatch.setenv(ranks_forked.FORKS, _forks()[0])
    monkeypatch.setattr(local.train, "__defaults__", (ranks_forked.command(), *local.train.__defaults__[1:]))
    monkeypatch.setattr(supervisor, "session_members", ranks_forked.session_members)


def finish(
    run_dir: Path, *flags: str, status: int = 0, start: Callable[..., Job] = forked_train, **options: object
) -> Job:
    """A run to its end."""
    with start(run_dir, *flags, **options) as job:
        assert job.wait() == status, job.output
    return job


def mpirun(program: str, ranks: int, directory: Path, *arguments: str) -> Job:
    """A rank program of this directory under mpirun with ULFM."""
    environment = {"PYTHONPATH": str(HERE.parent.parent)}
    return _bare([sys.executable, str(HERE / program), *arguments], ranks, True, directory / "none", environment)


def bare_train(
    run_dir: Path, *flags: str, ranks: int, ulfm: bool = True, environment: dict[str, str] | None = None
) -> Job:
    """`ddrl train` in a bare job, whose ranks start and compute as those of `forked_light_train`."""
    command = [*ranks_forked.command("ranks_bare.py"), *flags, "--run-dir", str(run_dir)]
    environment = {LIGHT: "1", ranks_forked.FORKS: _forks(light=True)[0]} | (environment or {})
    return _bare(command, ranks, ulfm, run_dir, environment)


def _bare(command: Sequence[str], ranks: int, ulfm: bool, run_dir: Path, environment: dict[str, str]) -> Job:
    launcher, environment = inspect_mpirun(find_mpirun()), rank_environment(os.geteuid() == 0) | environment
    return Job(mpirun_command(ranks, command, ulfm, launcher), run_dir, environment)


def program(name: str, directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> Job:
    """A program of this directory, by itself, in a fork."""
    return _forked(name, arguments, directory / "none", environment)


FAULTY_GAME = """
import os, time
import gymnasium, numpy, ddrl

class Faulty(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        observation = numpy.zeros(2, numpy.float32)
        FAULT
        return observation, 1.0, self.steps % 10 == 0, False, {}

ddrl.register_environment("NAME", Faulty)
"""


def faulty_game(directory: Path, name: str, fault: str) -> tuple[str, ...]:
    """Writes a plugin with a game, and returns the options that name both.

    Args:
        fault: a statement of its `step`, which may change `observation`.
    """
    (plugin := directory / f"{name}.py").write_text(FAULTY_GAME.replace("FAULT", fault).replace("NAME", name))
    return "--plugin", str(plugin), "--game", name


def events(run_dir: Path, name: str) -> list[dict]:
    """The events of that name in a run's metrics."""
    return [record for record in metrics.read_metrics(run_dir) if record.get("name") == name]


def lines(run_dir: Path) -> list[dict]:
    """The train lines of a run."""
    return [record for record in metrics.read_metrics(run_dir) if record["kind"] == "train"]


def evaluations(run_dir: Path) -> list[float]:
    """The mean scores of a run's evaluations."""
    return [record["mean"] for record in metrics.read_metrics(run_dir) if record["kind"] == "evaluation"]


def hashes(run_dir: Path) -> dict[str, str]:
    """version -> hash of its parameters."""
    return dict(line.split() for line in (run_dir / rundir.HASHES).read_text().splitlines())


def result(run_dir: Path) -> dict:
    """How a run ended."""
    return json.loads((run_dir / rundir.RESULT).read_text())


def newest(run_dir: Path) -> checkpoint.Checkpoint:
    """The newest checkpoint of a run, which may be training: its files go when newer ones have come."""
    while True:
        path = checkpoint.list_checkpoints(run_dir)[-1]
        try:
            return checkpoint.load(path)
        except UsageError:
            if path.exists():
                raise


def copy_run(run_dir: Path, to: Path) -> Path:
    """A copy of a run that can be gone on with by itself."""
    shutil.copytree(run_dir, to)
    config = rundir.read_json(to / rundir.CONFIG)
    config["run"]["run_dir"] = str(to)
    rundir.write_json(to / rundir.CONFIG, config)
    return to


def differences(one: checkpoint.Checkpoint, other: checkpoint.Checkpoint) -> Iterator[str]:
    """What of parameters, slots and step is not equal to the bit."""
    for name in ("version", "step", "optimizer_count"):
        if getattr(one, name) != getattr(other, name):
            yield f"{name}: {getattr(one, name)} and {getattr(other, name)}"
    arrays = {"parameters": (one.parameters, other.parameters)}
    arrays |= {name: (one.slots[name], other.slots[name]) for name in one.slots}
    for name, (a, b) in arrays.items():
        if a.tobytes() != b.tobytes():
            yield f"{name}: {np.count_nonzero(a != b)} of {a.size} values"
