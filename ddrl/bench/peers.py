"""`ddrl bench peers`: agent steps/s of an algorithm here and in another library, in turns on the same machine."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.bench.benchmark import emit
from ddrl.bench.ranks import json_line
from ddrl.bench.runs import LINE_SECONDS, run_for
from ddrl.config import FromReplay, TrainConfig
from ddrl.errors import UsageError
from ddrl.options import parse
from ddrl.placement.resources import this_machine
from ddrl.reporting.metrics import rate_between

SECONDS = (5.0, 3600.0)  # shortest and longest turn
WARM_UP_SECONDS = 10.0  # of both sides: simulators start together, queues fill, functions are traced
QUIET_LOAD = 0.7  # above it other programs take part; threads that wait for each other suffer far more than others
START_SECONDS = 300.0  # allowed for the peer's imports and its end, on a machine that is busy


class Library(NamedTuple):
    """Another library: the program that measures it, and what `pip install` needs for it."""

    program: str
    packages: str


LIBRARIES = {
    "stable-baselines3": Library("peer_sb3.py", "stable-baselines3 ale-py opencv-python-headless"),
    "sample-factory": Library("peer_sample_factory.py", "sample-factory 'ale-py>=0.10,<0.11'"),
    "rllib": Library("peer_rllib.py", "'ray[rllib]' torch ale-py opencv-python-headless"),
}

# Options of `ddrl train`, and of the peers' programs; the first peer is the default.
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
# Every peer plays Breakout with this network, in float32; ours in the type of its laptop presets.
COMMON = "--game breakout --network nature --compute-dtype bfloat16 --no-evaluator"

NOTES = {
    "ours": "agent steps/s, median of the rounds",
    "peer": "agent steps/s, median of the rounds",
    "ratio": "ours / peer",
    "roofline": "agent steps/s that ours could reach",
    "roofline_share": "ours / roofline",
    "load": "processes that ran or waited to, before and after",
}

HELP = """usage: ddrl bench peers --algorithm {a2c,ppo,appo,impala,dqn} [--peer-python PATH] [--peer NAME] [--seconds S]
                        [--rounds N] [--peer-options TEXT] [--roofline-seconds S] [--json FILE] [OPTIONS of ddrl train]

Trains Breakout with the Nature network in turns, the peer and then ours, --rounds times (default 2), and prints
the medians of agent steps/s and their ratio.

  --peer-python PATH    Python of a virtual environment that has the peer; without it only ours is measured
  --peer NAME           stable-baselines3 (a2c, ppo, dqn), sample-factory or rllib (appo, impala)
  --peer-options TEXT   more options of the peer's program, such as "--threads 1"
  --seconds S           measured in each turn after a warm-up of 10 s (default 20)
  --roofline-seconds S  for each part of our roofline, before and after (default 3; 0: not measured)
"""


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit status."""
    if {"-h", "--help"} & set(argv):
        print(HELP, end="")
        return 0
    options, rest = parse_options(argv)
    peer = options.peer or next(iter(PEERS[options.algorithm]))
    ours = [*OURS[options.algorithm].split(), *COMMON.split(), *rest]
    config = parse(ours, this_machine()).config
    command = peer_command(options, peer) if options.peer_python else None
    if command is None:
        print(f"ddrl: only ours is measured; for {peer}: {how_to_install(peer)}", file=sys.stderr)
    if os.getloadavg()[0] > QUIET_LOAD:
        print(f"ddrl: load {os.getloadavg()[0]:.1f} before the start: measure when nothing else runs", file=sys.stderr)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    values = measure(config, command, options, peer)
    settings = {"algorithm": options.algorithm, "settings_of_ours": " ".join(ours)}
    emit(f"{options.algorithm}: ours and {peer}", settings | values, options.json, NOTES)
    return 0


def parse_options(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The benchmark's own options, and those of `ddrl train`.

    Raises:
        UsageError: an algorithm without a peer, a peer that it has not, a time that is too short.
    """
    own = argparse.ArgumentParser(prog="ddrl bench peers", add_help=False, allow_abbrev=False)
    for name in ("--algorithm", "--peer", "--peer-python", "--peer-options", "--json"):
        own.add_argument(name, default="")
    own.add_argument("--seconds", type=float, default=20.0)
    own.add_argument("--rounds", type=int, default=2)
    own.add_argument("--roofline-seconds", type=float, default=3.0)
    options, rest = own.parse_known_args(list(argv))
    if options.algorithm not in PEERS:
        raise UsageError(f"--algorithm {options.algorithm or '(none)'}: choose one of {', '.join(PEERS)}")
    if options.peer and options.peer not in PEERS[options.algorithm]:
        known = ", ".join(PEERS[options.algorithm])
        raise UsageError(f"--peer {options.peer}: {options.algorithm} is compared with {known}")
    shortest, longest = SECONDS
    if not shortest <= options.seconds <= longest:
        raise UsageError(f"--seconds {options.seconds:g}: from {shortest:g} to {longest:g}")
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds}: at least 1")
    if not 0 <= options.roofline_seconds <= longest:
        raise UsageError(f"--roofline-seconds {options.roofline_seconds:g}: from 0 to {longest:g}")
    return options, rest


def peer_command(options: argparse.Namespace, peer: str) -> list[str]:
    """What runs the peer's program with the peer's Python, which sees nothing of this environment (-I).

    Raises:
        UsageError: there is no such program.
    """
    python = python_of(options.peer_python, peer)
    settings = [*PEERS[options.algorithm][peer].split(), *options.peer_options.split()]
    times = ["--seconds", f"{options.seconds:g}", "--warm-up-seconds", f"{WARM_UP_SECONDS:g}"]
    program = Path(__file__).with_name(LIBRARIES[peer].program)
    return [python, "-I", str(program), *settings, *times]


def python_of(path: str, peer: str) -> str:
    """A peer's Python, absolute; a link to Python stays one, since it tells the environment.

    Raises:
        UsageError: there is no such program.
    """
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise UsageError(f"--peer-python {path}: no program there that can be run; {how_to_install(peer)}")
    return os.path.abspath(path)


def how_to_install(peer: str) -> str:
    """The commands that make an environment for a peer, in one line."""
    return f"python -m venv PEER && PEER/bin/pip install {LIBRARIES[peer].packages}, then --peer-python PEER/bin/python"


def measure(
    config: TrainConfig, command: Sequence[str] | None, options: argparse.Namespace, peer: str
) -> dict[str, Any]:
    """Roofline, then peer and ours in turns, then the roofline again: the machine's speed drifts.

    Returns:
        JSON types: `ours`, `peer`, `ratio`, `roofline`, `roofline_share` (None where not measured), what each round
        gave, and what the peer says of itself.

    Raises:
        UsageError: ours or the peer failed, or the peer is not in that environment.
    """
    load = [os.getloadavg()[0]]
    rooflines, ours, peers = _roofline(config, options.roofline_seconds), [], []
    for _ in range(options.rounds):
        if command is not None:
            peers.append(peer_result(command, peer, WARM_UP_SECONDS + 2 * options.seconds))
        ours.append(_ours(config, options.seconds))
    rooflines += _roofline(config, options.roofline_seconds)
    load.append(os.getloadavg()[0])
    values = compare(ours, [run["agent_steps_per_second"] for run in peers], rooflines)
    about = {name: value for name, value in peers[-1].items() if name not in RATES} if peers else {"name": peer}
    return values | {"about_peer": about, "seconds": options.seconds, "load": [round(value, 2) for value in load]}


RATES = ("agent_steps", "seconds", "agent_steps_per_second")  # of a peer's result; all else are its settings


def compare(ours: Sequence[float], peers: Sequence[float], rooflines: Sequence[float]) -> dict[str, Any]:
    """Medians of the rounds and what follows from them; None for what was not measured."""
    ours_median = statistics.median(ours)
    peer_median = statistics.median(peers) if peers else None
    roofline = statistics.mean(rooflines) if rooflines else None
    return {
        "ours": ours_median,
        "peer": peer_median,
        "ratio": ours_median / peer_median if peer_median else None,
        "roofline": roofline,
        "roofline_share": ours_median / roofline if roofline else None,
        "ours_by_round": [round(rate, 1) for rate in ours],
        "peer_by_round": [round(rate, 1) for rate in peers],
    }


def _roofline(config: TrainConfig, seconds: float) -> list[float]:
    if seconds == 0:
        return []
    from ddrl.bench.roofline import measure_roofline

    return [measure_roofline(config, seconds, this_machine().cores)["roofline"]]


def _ours(config: TrainConfig, seconds: float) -> float:
    """Agent steps/s of a real run after the warm-up."""
    lines = run_for(config, WARM_UP_SECONDS + seconds + LINE_SECONDS)
    if config.has_replay:
        return rate_of_learning(lines, WARM_UP_SECONDS, config.replay_data)
    return rate(lines, WARM_UP_SECONDS)


def rate(lines: Sequence[dict[str, Any]], warm_up_seconds: float) -> float:
    """Agent steps/s between the first of the train records after the warm-up and the last but one.

    Raises:
        UsageError: there are too few records, on a machine that is too busy or with updates that take too long.
    """
    acted = [line for line in lines[:-1] if "agent_steps" in line]
    later = [line for line in acted if line["wall_seconds"] >= warm_up_seconds]
    if len(later) < 2:
        raise UsageError("the run was too short to be measured; give more --seconds")
    first, last = later[0], later[-1]
    return (last["agent_steps"] - first["agent_steps"]) / (last["wall_seconds"] - first["wall_seconds"])


def rate_of_learning(lines: Sequence[dict[str, Any]], warm_up_seconds: float, data: FromReplay) -> float:
    """Agent steps/s that Q-learning learns from after the warm-up, over whole target periods.

    The updates tell them, since random actions at the start have none, and acting may run ahead within a period.

    Raises:
        UsageError: no period began and ended.
    """
    updates = data.target_period // data.steps_per_update
    later = [line["update"] for line in lines if line["wall_seconds"] >= warm_up_seconds and line["update"] > 0]
    first, last = (-(-later[0] // updates) * updates, (later[-1] - 1) // updates * updates) if later else (0, 0)
    rate = rate_between(lines, "update", first, last) if last > first else None
    if rate is None:
        raise UsageError(f"the run saw no whole --target-period {data.target_period}; give more --seconds")
    return rate * data.steps_per_update


def peer_result(command: Sequence[str], peer: str, seconds: float) -> dict[str, Any]:
    """What a peer's program prints, which may take so many seconds besides its imports.

    Raises:
        UsageError: it failed, took too long, or misses a package.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "OPENBLAS_"))}
    result = json_line(command, environment, seconds + START_SECONDS)
    if "missing" in result:
        raise UsageError(f"--peer-python {command[0]}: {result['missing']}; {how_to_install(peer)}")
    return result
