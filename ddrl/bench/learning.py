"""`ddrl bench learning`: the agent steps that PPO needs to a score, here and in Stable-Baselines3, over seeds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.bench.peers import command_or_note, peer_result
from ddrl.bench.runs import train_records
from ddrl.config import TrainConfig
from ddrl.options.train_options import parse
from ddrl.placement.resources import this_machine
from ddrl.reporting.metrics import ONLINE_EPISODES, first_online

PEER = "stable-baselines3"
LINE_SECONDS = 0.1  # between records: sets the precision of our agent steps
PEER_STEPS_PER_SECOND = 50.0  # a peer that is slower than this is given up

ALIKE = ("game", "epochs", "learning_rate", "discount", "gae_lambda", "clip_range", "entropy_cost")
SAME = {name: name for name in ALIKE} | {
    "simulators": "environments",
    "unroll_length": "steps",
    "batch_size": "minibatch",
}
"""The settings that both have: our name -> the peer's name."""
NOTES = {
    "ours": "agent steps to the score for each seed (null: not reached)",
    "peer": "likewise",
    "ours_median": "seeds that did not reach it count as the budget",
    "ratio": "ours / peer, of the medians: below 1, ours needs fewer (null: neither reached it)",
}


@dataclasses.dataclass(frozen=True)
class LearningArguments(BenchmarkArguments):
    """PPO with the same settings, networks (two towers of 64 x 64 tanh) and protocol in both: the agent steps after
    which the mean of the last 100 training episodes first reaches a score."""

    peer_python: str = ""
    """Python of a virtual environment that has Stable-Baselines3; without it, only ours is measured."""
    game: str = "CartPole-v1"
    """A Gymnasium environment of vectors."""
    target_score: float = 450.0
    """Score to reach, as the mean of the last 100 training episodes."""
    agent_steps: int = 300_000
    """Budget of each run, in agent steps."""
    repeats: int = 5
    """Runs of each system, with the seeds from --seed on."""
    seed: int = 1
    """The first seed."""
    simulators: int = 8
    """Environments of a run."""
    unroll_length: int = 128
    """Agent steps of each environment per rollout."""
    batch_size: int = 256
    """Data-points in a minibatch."""
    epochs: int = 10
    """Times that a rollout is used."""
    learning_rate: float = 1e-3
    """Adam's learning rate, which is constant."""
    discount: float = 0.99
    """Discount per agent step (gamma)."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip_range: float = 0.2
    """Clip the ratio pi/mu to 1 - x .. 1 + x."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "agent_steps", "repeats", "simulators", "unroll_length", "batch_size", "epochs")
        checks.at_least(self, 0, "seed")
        checks.above(self, 0.0, "learning_rate", "clip_range")
        checks.finite(self, "target_score")


def measure(arguments: LearningArguments) -> dict[str, Any]:
    """Runs the peer and then ours for each seed; returns the agent steps of each, the medians and their ratio.

    Raises:
        UsageError: settings that do not go together, ours or the peer failed, or the peer is not in that environment.
    """
    command = command_or_note(arguments.peer_python, PEER, f"{PEER}-score")
    seeds = range(arguments.seed, arguments.seed + arguments.repeats)
    configs = [_config(arguments, seed) for seed in seeds]  # refuses invalid settings before the peer runs
    ours: list[int | None] = []
    peers: list[dict[str, Any]] = []
    for seed, config in zip(seeds, configs):
        if command:
            options = [*command, *_options_of_peer(arguments, seed)]
            peers.append(peer_result(options, PEER, arguments.agent_steps / PEER_STEPS_PER_SECOND))
        records = train_records(config, agent_steps=arguments.agent_steps, log_every_seconds=LINE_SECONDS)
        ours.append(first_reached(records, arguments.target_score))
    compared = compare(ours, [run["reached"] for run in peers], arguments.agent_steps)
    about = {"name": PEER} | ({"version": peers[0]["version"]} if peers else {})
    return compared | {"about_peer": about, "episodes": ONLINE_EPISODES} | arguments.settings("peer_python")


def compare(ours: Sequence[int | None], peers: Sequence[int | None], budget: int) -> dict[str, Any]:
    """The agent steps of all runs, the medians and their ratio; None for what was not measured.

    Args:
        ours: for each seed, the agent steps to the score; None where it was not reached.
        peers: the same of the peer; empty if it was not run.
        budget: agent steps of each run; a run that did not reach the score counts as this in the medians.
    """
    ours_median = statistics.median(_counted(ours, budget))
    peer_median = statistics.median(_counted(peers, budget)) if peers else None
    neither = peer_median is not None and min(ours_median, peer_median) >= budget  # then both are the budget
    return {
        "ours": list(ours),
        "peer": list(peers) or None,
        "ours_median": ours_median,
        "peer_median": peer_median,
        "ratio": ours_median / peer_median if peer_median and not neither else None,
    }


def first_reached(records: Sequence[dict[str, Any]], score: float) -> int | None:
    """Agent steps of the first `train` record whose online score, a mean of ONLINE_EPISODES, reaches `score`."""
    record = first_online(records, score)
    return None if record is None else int(record["agent_steps"])


def _counted(reached: Sequence[int | None], budget: int) -> list[int]:
    return [budget if steps is None else steps for steps in reached]


def _config(arguments: LearningArguments, seed: int) -> TrainConfig:
    """The settings of our run."""
    options = ["ppo", "--network", "mlp", "--compute-dtype", "float32", "--reward-clip", "0", "--groups", "1",
               "--value-cost", "0.5", "--clip-global-norm", "0.5", "--learning-rate-schedule", "constant",
               "--clip-range-schedule", "constant", "--no-evaluator", "--seed", str(seed)]  # fmt: skip
    return parse(options + _options({name: getattr(arguments, name) for name in SAME}), this_machine()).config


def _options_of_peer(arguments: LearningArguments, seed: int) -> list[str]:
    """The command line options of the peer's program."""
    same = {theirs: getattr(arguments, name) for name, theirs in SAME.items()}
    budget = {"agent-steps": arguments.agent_steps, "target-score": arguments.target_score}
    return _options(same | budget | {"seed": seed, "episodes": ONLINE_EPISODES})


def _options(values: Mapping[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (checks.flag(name), str(value))]


main = Benchmark(
    name="learning",
    arguments=LearningArguments,
    measure=measure,
    title=f"PPO on {{options.game}}: ours and {PEER}",
    notes=NOTES,
)
