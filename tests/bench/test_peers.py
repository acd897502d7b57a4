from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddrl import cli
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.algorithms.dqn import DQNConfig
from ddrl.bench import peer_program, peers, ranks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.options.train_options import parse
from ddrl.types import Machine
from tests.bench.fake_peer import peer_python

INSTALLED = [name for name in ("stable_baselines3", "sample_factory", "ray") if importlib.util.find_spec(name)]
without_libraries = pytest.mark.skipif(bool(INSTALLED), reason=f"{INSTALLED} would really run")
PAIRS = [(algorithm, name) for algorithm, names in peers.PEERS.items() for name in names]
PROGRAM = Path(peers.__file__).with_name("peer_program.py")
REVERB = Path(peers.__file__).with_name("peer_reverb.py")


@pytest.fixture
def ours(monkeypatch):
    """Stands in for our runs, which take time, and for the command line of algorithms; keeps what was asked for."""
    asked = []

    def run_for(config, seconds):
        asked.append((config, seconds))
        step = 100 * len(asked)  # agent steps/s
        return [{"wall_seconds": 2.0 * i, "agent_steps": 2 * i * step} for i in range(1, 30)]

    class Arguments:
        config = TrainConfig(algorithm=BA3CConfig())

    monkeypatch.setattr(peers, "run_for", run_for)
    monkeypatch.setattr(peers.os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    monkeypatch.setattr(peers, "parse", lambda argv, machine: asked.append(argv) or Arguments())
    return asked


def bench(*options: str) -> int:
    return cli.main(["bench", "peers", "--roofline-seconds", "0", *options])


def test_ours_and_the_peer_in_turns(ours, tmp_path, capsys):
    calls = tmp_path / "calls"
    python = peer_python(
        tmp_path,
        f"""
with open({str(calls)!r}, "a") as file: print(json.dumps(sys.argv[1:]), file=file)
print("chatter")
rate = 60.0 * len(open({str(calls)!r}).readlines())
print("RESULT", json.dumps({{"agent_steps_per_second": rate, "name": "fake", "version": "7", "threads": 2}}))
""",
    )
    settings = ["--algorithm", "ppo", "--peer-python", python, "--seconds", "8", "--peer-options=--threads 1"]
    assert bench(*settings, "--json", "-", "--game", "pong") == 0
    result = json.loads(capsys.readouterr().out)
    # Our runs gave 200 and 300 (the first entry of what was asked is the command line), the peer 60 and 120.
    assert (result["ours"], result["peer"]) == (pytest.approx(250.0), 90.0)
    assert result["ratio"] == pytest.approx(250 / 90)
    assert result["ours_by_round"] == [200.0, 300.0] and result["peer_by_round"] == [60.0, 120.0]
    assert result["about_peer"] == {"name": "fake", "version": "7", "threads": 2}
    assert (result["roofline"], result["roofline_share"]) == (None, None)
    assert result["machine"]["cores"] >= 1
    assert ours[0][-2:] == ["--game", "pong"]
    assert ours[1][1] >= 8 + peers.WARM_UP_SECONDS
    first = json.loads(calls.read_text().splitlines()[0])
    assert first[0] == "-I" and first[1].endswith("peer_program.py") and first[2] == "stable-baselines3"
    assert "--algorithm ppo --environments 8 --steps 128" in " ".join(first)
    assert first[first.index("--threads") + 1] == "1"
    assert first[first.index("--seconds") + 1] == "8"


def test_without_a_peer_ours_alone(ours, capsys):
    assert bench("--algorithm", "impala", "--json", "-") == 0
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1 and "pip install 'ray[rllib]'" in captured.err
    result = json.loads(captured.out)
    assert result["ours"] > 0 and result["peer"] is None and result["ratio"] is None


def test_a_busy_machine_is_named(ours, monkeypatch, capsys):
    monkeypatch.setattr(peers.os, "getloadavg", lambda: (3.0, 0.1, 0.1))
    assert bench("--algorithm", "a2c", "--rounds", "1", "--json", "-") == 0
    captured = capsys.readouterr()
    assert "load 3.0 before the start" in captured.err
    assert json.loads(captured.out)["load"] == [3.0, 3.0]


def test_the_roofline_stands_beside(ours, monkeypatch, capsys):
    monkeypatch.setattr(peers, "_roofline", lambda config, seconds: 500.0)
    assert bench("--algorithm", "a2c", "--rounds", "1", "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["roofline"], result["roofline_share"]) == (500.0, pytest.approx(200 / 500))


@without_libraries
@pytest.mark.parametrize(
    "algorithm, name", [("a2c", "stable-baselines3"), ("appo", "sample-factory"), ("impala", "rllib")]
)
def test_a_missing_package_is_one_line(ours, algorithm, name, capsys):
    """The real programs under a Python that has none of the libraries."""
    assert bench("--algorithm", algorithm, "--peer", name, "--peer-python", sys.executable) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert "No module named" in errors and "pip install" in errors
    assert [entry for entry in ours if isinstance(entry, tuple)] == []  # ours did not run for nothing


@pytest.mark.parametrize(
    "options, said",
    [
        ("", "--algorithm is missing: choose one of a2c, ppo, appo, impala, dqn"),
        ("--algorithm sac", "--algorithm sac: choose one of"),
        ("--algorithm a2c --peer rllib", "--peer rllib: a2c is compared with stable-baselines3"),
        ("--algorithm a2c --seconds 1", "--seconds 1.0: must be between 5.0"),
        ("--algorithm a2c --seconds nan", "--seconds nan: must be between 5.0"),
        ("--algorithm a2c --seconds inf", "--seconds inf: must be between 5.0"),
        ("--algorithm a2c --rounds 0", "--rounds 0: must be a finite number of at least 1"),
        ("--algorithm a2c --peer-python /no/python", "--peer-python /no/python: there is no executable file"),
        ("--algorithm a2c --peer-python /", "--peer-python /: there is no executable file"),
    ],
)
def test_bad_input_is_one_line(ours, options, said, capsys):
    assert bench(*options.split()) == 2
    errors = capsys.readouterr().err
    assert said in errors and len(errors.splitlines()) == 1


def test_a_peer_that_fails_is_named_and_nothing_of_it_is_left(ours, tmp_path, capsys):
    python = peer_python(
        tmp_path,
        f"""
import subprocess
nothing = subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], stdout=nothing, stderr=nothing)
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
sys.exit("no such game")
""",
    )
    assert bench("--algorithm", "a2c", "--peer-python", python) == 2
    assert "no such game" in capsys.readouterr().err
    assert not alive(int((tmp_path / "child").read_text()))


def test_a_peer_that_takes_too_long_is_ended(tmp_path):
    lines = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    python = peer_python(tmp_path, lines)
    with pytest.raises(UsageError, match="no result within 3 s"):
        ranks.json_line([python], os.environ, 3.0)
    pid = tmp_path / "pid"  # not there if the machine had it begin too late
    assert not pid.exists() or not alive(int(pid.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_ends_the_peer_too(number, tmp_path):
    lines = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); "
    python = peer_python(tmp_path, f"{lines}os.kill(os.getppid(), {int(number)}); time.sleep(300)")
    before = signal.signal(number, lambda *_: None)  # it would end the tests
    try:
        with pytest.raises(KeyboardInterrupt):
            ranks.json_line([python], os.environ, 100.0)
    finally:
        signal.signal(number, before)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_processes_in_groups_of_their_own_are_ended_too(tmp_path):
    """As mpirun's ranks are."""
    python = peer_python(
        tmp_path,
        f"""
import os, subprocess
nothing = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "300"], stdout=nothing, stderr=nothing, preexec_fn=os.setpgrp)
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
print("RESULT 7", flush=True)
""",
    )
    assert ranks.json_line([python], os.environ, 60.0) == 7
    assert not alive(int((tmp_path / "child").read_text()))


def learning(period, steps_per_update, rate, seconds):
    """Records of a run whose updates begin after 4 s, and whose acting is up to a period ahead, in bursts."""
    lines = []
    for second in range(2, seconds, 2):
        steps = rate * max(0, second - 4)
        line = {"kind": "train", "wall_seconds": float(second), "update": steps // steps_per_update}
        lines.append(line | {"agent_steps": -(-steps // period) * period + 2000})
    return lines


def test_q_learning_is_measured_by_its_updates_over_whole_periods():
    algorithm = DQNConfig(target_period=2000, steps_per_update=4)
    lines = learning(2000, 4, 400, 40)
    assert peers.rate_of_learning(lines, 10.0, algorithm) == pytest.approx(400.0)
    assert peers.rate_of_learning(lines, 1.0, algorithm) == pytest.approx(400.0)  # nothing counts before it learns
    with pytest.raises(UsageError, match="no whole --target-period 2000; give more --seconds"):
        peers.rate_of_learning(lines, 33.0, algorithm)
    with pytest.raises(UsageError, match="no whole --target-period"):
        peers.rate_of_learning(lines[:2], 0.0, algorithm)


def test_dqn_and_its_peer_learn_with_equal_settings():
    config = parse([*peers.OURS["dqn"].split(), *peers.COMMON.split()], Machine(2, 1 << 40)).config
    theirs = dict(zip(*[iter(peers.PEERS["dqn"]["stable-baselines3"].split())] * 2))
    assert int(theirs["--learning-starts"]) == config.replay.replay_minimum
    assert int(theirs["--minibatch"]) == config.batch_size == 32
    assert int(theirs["--steps"]) == config.algorithm.steps_per_update == 4
    assert (config.sampling.schedule, config.sampling.groups) == ("concurrent", 1)
    assert config.replay.replay_capacity == 100_000 and config.network.network == "nature"


def alive(process: int) -> bool:
    """Whether a process still runs a minute after it was killed; one that only waits to be reaped does not."""
    for _ in range(600):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.1)
    return True


def test_the_rate_leaves_out_the_warm_up_and_the_last_line():
    with pytest.raises(UsageError, match="give more --seconds"):
        peers.rate([{"wall_seconds": 12.0}] * 4, 9.0)  # nobody reported yet
    records = [(2, 0), (10, 50), (12, 250), (14, 450), (15, 9)]
    lines = [{"wall_seconds": seconds, "agent_steps": steps} for seconds, steps in records]
    assert peers.rate(lines, 9.0) == 100.0
    with pytest.raises(UsageError, match="give more --seconds"):
        peers.rate(lines, 13.0)


@pytest.mark.parametrize("program", [PROGRAM, REVERB], ids=lambda path: path.stem)
def test_programs_import_nothing_of_ours(program):
    names = [
        name
        for node in ast.walk(ast.parse(program.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    assert names and not [name for name in names if name.split(".")[0] in ("ddrl", "cluster")]


def run_program(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-I", str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_explains_its_options():
    done = run_program("sample-factory", "--help")
    assert done.returncode == 0 and "groups of environments that take turns" in done.stdout


@without_libraries
@pytest.mark.parametrize("algorithm, name", PAIRS)
def test_programs_take_the_options_of_the_table(algorithm, name):
    done = run_program(name, *peers.PEERS[algorithm][name].split(), "--seconds", "1")
    assert done.returncode == 0 and "missing" in done.stdout


def test_a_rate_is_that_after_the_warm_up_by_the_count_that_gives_least(monkeypatch):
    now = iter([0.0, 1.0, 2.0, 5.0, 6.0, 9.0, 20.0])
    monkeypatch.setattr(peer_program.time, "perf_counter", lambda: next(now))
    clock = peer_program.Clock(argparse.Namespace(warm_up_seconds=2.0, seconds=4.0))
    over = [clock.tick(100 * number, 90 * number) for number in range(7)]
    assert over == [False] * 4 + [True] * 3  # the marks are at 0, 2 and 6 seconds
    assert clock.rates() == {
        "agent_steps": 180, "seconds": 4.0, "agent_steps_per_second": 45.0, "agent_steps_counted": [200, 180]
    }  # fmt: skip


FAKE_LIBRARY = {
    "torch.py": "__version__ = '5'\nget_num_threads = lambda: 1\n",
    "stable_baselines3-7.dist-info/METADATA": "Metadata-Version: 2.1\nName: stable-baselines3\nVersion: 7\n",
    "stable_baselines3/common/__init__.py": "",
    "stable_baselines3/common/callbacks.py": "class BaseCallback: pass\n",
    "stable_baselines3/common/env_util.py": "make_atari_env = make_vec_env = lambda *given, **options: options\n",
    "stable_baselines3/common/logger.py": "Logger = lambda folder, output_formats: output_formats\n",
    "stable_baselines3/common/vec_env.py": (
        "DummyVecEnv = SubprocVecEnv = None\nVecFrameStack = lambda environment, n_stack: environment\n"
    ),
    "stable_baselines3/__init__.py": """
import time, types
class Model:
    def __init__(self, policy, environment, **settings):
        self.settings, self.num_timesteps, self.logger = settings, 0, "one with a directory"
    def set_logger(self, logger):
        self.logger = logger
    def learn(self, total_timesteps, callback):
        assert self.logger == []
        callback.locals = {"infos": [{"episode": {"r": 5.0}}, {}]}
        while self.num_timesteps < total_timesteps:
            callback.num_timesteps = self.num_timesteps
            getattr(callback, "_on_rollout_start", int)()
            time.sleep(0.01)
            self.num_timesteps = callback.num_timesteps = self.num_timesteps + 10
            if not callback._on_step():
                break
    def get_env(self):
        return types.SimpleNamespace(close=int)
A2C = PPO = DQN = Model
""",
}


@pytest.fixture
def fake_library(tmp_path, monkeypatch):
    """Stands in for Stable-Baselines3: each rollout is 10 agent steps and 10 ms; every second step an episode ends."""
    for name, text in FAKE_LIBRARY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def result_of(*arguments: str) -> dict:
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "dqn"])
def test_a_program_measures_its_library(fake_library, algorithm):
    found = result_of("stable-baselines3", "--algorithm", algorithm, "--warm-up-seconds", "0.05", "--seconds", "0.2")
    assert (found["name"], found["version"], found["torch"], found["steps"]) == ("stable-baselines3", "7", "5", 5)
    assert found["seconds"] >= 0.2 and 0 < found["agent_steps"] <= 1000 * found["seconds"]
    assert found["agent_steps_per_second"] == found["agent_steps"] / found["seconds"]


def test_a_program_counts_to_a_score(fake_library):
    options = ["--episodes", "4", "--target-score", "5", "--agent-steps", "100", "--environments", "2"]
    assert result_of("stable-baselines3-score", *options)["reached"] == 40
    found = result_of("stable-baselines3-score", *options, "--target-score", "6")
    assert (found["reached"], found["agent_steps"], found["score"], found["version"]) == (None, 100, 5.0, "7")
