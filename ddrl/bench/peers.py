"""`ddrl bench peers`: agent steps/s of an algorithm here and in another library, in turns on the same machine."""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, TakesTrainOptions
from ddrl.bench.ranks import json_line
from ddrl.bench.roofline import measure_roofline
from ddrl.bench.runs import LINE_SECONDS, run_for
from ddrl.config import FromReplay, TrainConfig
from ddrl.errors import UsageError
from ddrl.options.train_options import parse
from ddrl.placement.resources import this_machine
from ddrl.reporting.metrics import rate_between

WARM_UP_SECONDS = 10.0  # of both sides: simulators start together, queues fill, functions are traced
QUIET_LOAD = 0.7  # a higher load means other programs run; threads that wait for each other suffer most from it
START_SECONDS = 300.0  # allowed for the peer's imports and its end, on a busy machine
LONGEST_SECONDS = 3600.0

PACKAGES = {
    "stable-baselines3": "stable-baselines3 ale-py opencv-python-headless",
    "sample-factory": "sample-factory 'ale-py>=0.10,<0.11'",
    "rllib": "'ray[rllib]' torch ale-py opencv-python-headless",
    "reverb": "'dm-reverb[tensorflow]==0.14.0'",  # for Python 3.11 at most
}
"""The arguments of `pip install` for each peer."""

# By algorithm: the options of `ddrl train`, and those of each peer's program; the first peer is the default.
OURS = {
    "a2c": "a2c --simulators 16 --unroll-length 5",
    "ppo": "ppo --simulators 8 --unroll-length 128 --epochs 4 --batch-size 256",
    "appo": "appo --unroll-length 128 --batch-size 256 --epochs 1",
    "impala": "impala",
    "dqn": (
        "dqn --schedule concurrent --simulators 8 --groups 1 --batch-size 32 --steps-per-update 4 --target-period 1000 "
        "--replay-capacity 100000 --replay-minimum 2000 --epsilon-start 0.1 --epsilon-end 0.1 --epsilon-steps 0"
    ),
}
PEERS = {
    "a2c": {"stable-baselines3": "--algorithm a2c --environments 16 --steps 5"},
    "ppo": {"stable-baselines3": "--algorithm ppo --environments 8 --steps 128 --epochs 4 --minibatch 256"},
    "appo": {"sample-factory": "--algorithm appo", "rllib": "--algorithm appo"},
    "impala": {"rllib": "--algorithm impala", "sample-factory": "--algorithm impala"},
    "dqn": {"stable-baselines3": "--algorithm dqn --environments 1 --steps 4 --minibatch 32 --learning-starts 2000"},
}
# Every peer plays Breakout with this network, too, in float32; ours computes in the faster type of this machine.
COMMON = "--game breakout --network nature --no-evaluator"

NOTES = {
    "ours": "agent steps/s, median of the rounds",
    "peer": "agent steps/s, median of the rounds",
    "ratio": "ours / peer",
    "roofline": "agent steps/s that ours could reach",
    "roofline_share": "ours / roofline",
    "load": "processes that ran or waited to, before and after",
}


@dataclasses.dataclass(frozen=True)
class PeersArguments(TakesTrainOptions):
    """Train Breakout with the Nature network in turns, the peer and then ours, and print the medians of agent steps/s
    and their ratio. All other options are those of `ddrl train`, for ours."""

    algorithm: str = ""
    """What to train: a2c, ppo, appo, impala, or dqn."""
    peer: str = ""
    """stable-baselines3 (a2c, ppo, dqn), sample-factory or rllib (appo, impala); default: the first of them."""
    peer_python: str = ""
    """Python of a virtual environment that has the peer; without it, only ours is measured."""
    peer_options: str = ""
    """More options of the peer's program: --peer-options="--threads 1"."""
    seconds: float = 20.0
    """Seconds measured in each turn, after a warm-up of 10 s."""
    rounds: int = 2
    """Turns of both."""
    roofline_seconds: float = 3.0
    """Seconds for each part of our roofline, before and after (0: not measured)."""

    def __post_init__(self) -> None:
        if not self.algorithm:
            raise UsageError(f"--algorithm is missing: choose one of {', '.join(PEERS)}")
        if self.algorithm not in PEERS:
            checks.refuse(self, "algorithm", f"choose one of {', '.join(PEERS)}")
        if self.peer and self.peer not in PEERS[self.algorithm]:
            checks.refuse(self, "peer", f"{self.algorithm} is compared with {', '.join(PEERS[self.algorithm])}")
        checks.between(self, 5.0, LONGEST_SECONDS, "seconds")
        checks.at_least(self, 1, "rounds")
        checks.between(self, 0.0, LONGEST_SECONDS, "roofline_seconds")

    @property
    def library(self) -> str:
        """The name of the peer: as given, or the default for the algorithm."""
        return self.peer or next(iter(PEERS[self.algorithm]))

    @property
    def ours(self) -> list[str]:
        """The options of `ddrl train` for our run."""
        common = [*COMMON.split(), "--compute-dtype", this_machine().faster_dtype]
        return [*OURS[self.algorithm].split(), *common, *self.train_options]

    def command(self) -> list[str]:
        """The command that runs the peer; see `command_or_note`. Raises UsageError if there is no such Python."""
        settings = [*PEERS[self.algorithm][self.library].split(), *self.peer_options.split()]
        times = ["--seconds", f"{self.seconds:g}", "--warm-up-seconds", f"{WARM_UP_SECONDS:g}"]
        return command_or_note(self.peer_python, self.library, self.library, *settings, *times)


def peer_command(python: str, peer: str, program: str, *arguments: str) -> list[str]:
    """The command that runs a program of this directory with a peer's Python, isolated from this environment (-I).

    A symbolic link to Python is not resolved, as Python finds its virtual environment by the link's path.

    Raises:
        UsageError: there is no such Python.
    """
    check_python(python, peer)
    return [os.path.abspath(python), "-I", str(Path(__file__).with_name(program)), *arguments]


def command_or_note(python: str, peer: str, *arguments: str) -> list[str]:
    """The command that runs peer_program.py, see `peer_command`; empty, after a note to the user, without a Python."""
    if python:
        return peer_command(python, peer, "peer_program.py", *arguments)
    print(f"ddrl: only ours is measured; to measure {peer}, too: {how_to_install(peer)}", file=sys.stderr)
    return []


def check_python(python: str, peer: str) -> None:
    """Raises UsageError if there is no program at this path that can be run as a peer's Python."""
    if not os.access(python, os.X_OK) or os.path.isdir(python):
        raise UsageError(f"--peer-python {python}: there is no executable file; {how_to_install(peer)}")


def how_to_install(peer: str) -> str:
    """The commands that make an environment for a peer, in one line."""
    return f"python -m venv PEER && PEER/bin/pip install {PACKAGES[peer]}, then --peer-python PEER/bin/python"


def measure(arguments: PeersArguments) -> dict[str, Any]:
    """Measures the roofline, then the peer and ours in turns, then the roofline again, as the machine's speed drifts.

    Returns:
        JSON types: `ours`, `peer`, `ratio`, `roofline`, `roofline_share` (None where not measured), the rates of each
        round, and the versions and settings that the peer reports.

    Raises:
        UsageError: ours or the peer failed, or the peer is not in that environment.
    """
    config, peer, seconds = parse(arguments.ours, this_machine()).config, arguments.library, arguments.seconds
    command = arguments.command()
    load = [os.getloadavg()[0]]
    if load[0] > QUIET_LOAD:
        print(f"ddrl: load {load[0]:.1f} before the start: measure when nothing else runs", file=sys.stderr)
    rooflines, ours, peers = [_roofline(config, arguments.roofline_seconds)], [], []
    for _ in range(arguments.rounds):
        if command:
            peers.append(peer_result(command, peer, WARM_UP_SECONDS + 2 * seconds))
        ours.append(_ours(config, seconds))
    rooflines.append(_roofline(config, arguments.roofline_seconds))
    load.append(os.getloadavg()[0])
    values = compare(ours, [run["agent_steps_per_second"] for run in peers], statistics.mean(rooflines))
    about = {name: value for name, value in peers[-1].items() if name not in RATES} if peers else {"name": peer}
    settings = {"algorithm": arguments.algorithm, "settings_of_ours": " ".join(arguments.ours)}
    return settings | values | {"about_peer": about, "seconds": seconds, "load": [round(value, 2) for value in load]}


RATES = ("agent_steps", "seconds", "agent_steps_per_second")  # what a peer measured; all else in its result is settings


def compare(ours: Sequence[float], peers: Sequence[float], roofline: float) -> dict[str, Any]:
    """The medians of the rounds, their ratio and our share of the roofline; None for what was not measured.

    Args:
        ours: agent steps/s of each round.
        peers: the same of the peer; empty if it was not run.
        roofline: agent steps/s; 0 if it was not measured.
    """
    ours_median = statistics.median(ours)
    peer_median = statistics.median(peers) if peers else None
    return {
        "ours": ours_median,
        "peer": peer_median,
        "ratio": ours_median / peer_median if peer_median else None,
        "roofline": roofline or None,
        "roofline_share": ours_median / roofline if roofline else None,
        "ours_by_round": [round(rate, 1) for rate in ours],
        "peer_by_round": [round(rate, 1) for rate in peers],
    }


def _roofline(config: TrainConfig, seconds: float) -> float:
    """The roofline in agent steps/s; 0 if it is not measured."""
    return measure_roofline(config, seconds, this_machine().cores)["roofline"] if seconds else 0.0


def _ours(config: TrainConfig, seconds: float) -> float:
    """Agent steps/s of a real run after the warm-up."""
    lines = run_for(config, WARM_UP_SECONDS + seconds + LINE_SECONDS)
    if config.has_replay:
        return rate_of_learning(lines, WARM_UP_SECONDS, config.replay_data)
    return rate(lines, WARM_UP_SECONDS)


def rate(lines: Sequence[dict[str, Any]], warm_up_seconds: float) -> float:
    """Agent steps/s between the first train record after the warm-up and the last record but one.

    Raises:
        UsageError: there are too few records, as the machine is too busy or updates take too long.
    """
    acted = [line for line in lines[:-1] if "agent_steps" in line]
    later = [line for line in acted if line["wall_seconds"] >= warm_up_seconds]
    if len(later) < 2:
        raise UsageError("the run was too short to be measured; give more --seconds")
    first, last = later[0], later[-1]
    return (last["agent_steps"] - first["agent_steps"]) / (last["wall_seconds"] - first["wall_seconds"])


def rate_of_learning(lines: Sequence[dict[str, Any]], warm_up_seconds: float, data: FromReplay) -> float:
    """Agent steps/s that Q-learning learns from after the warm-up, over whole target periods.

    They are counted by the updates: the random actions at the start are without updates, and acting may run ahead of
    learning within a period.

    Raises:
        UsageError: there was no whole period.
    """
    updates = data.target_period // data.steps_per_update
    later = [line["update"] for line in lines if line["wall_seconds"] >= warm_up_seconds and line["update"] > 0]
    first, last = (-(-later[0] // updates) * updates, (later[-1] - 1) // updates * updates) if later else (0, 0)
    rate = rate_between(lines, "update", first, last) if last > first else None
    if rate is None:
        raise UsageError(f"the run saw no whole --target-period {data.target_period}; give more --seconds")
    return rate * data.steps_per_update


def peer_result(command: Sequence[str], peer: str, seconds: float) -> dict[str, Any]:
    """Runs a peer's program and returns the result that it prints.

    Args:
        command: see `peer_command`.
        peer: the peer's name, for messages.
        seconds: the longest that the program may take, besides START_SECONDS for its imports and its end.

    Raises:
        UsageError: the program failed, took too long, or misses a package.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "OPENBLAS_"))}
    result = json_line(command, environment, seconds + START_SECONDS)
    if "missing" in result:
        raise UsageError(f"--peer-python {command[0]}: {result['missing']}; {how_to_install(peer)}")
    return result


main = Benchmark(
    name="peers",
    arguments=PeersArguments,
    measure=measure,
    title="{options.algorithm}: ours and {options.library}",
    notes=NOTES,
)
