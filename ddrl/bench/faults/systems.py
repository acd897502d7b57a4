"""The runs that are broken: every exchange, schedule and kind of replay in a small run of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

INTERVAL_UPDATES = 100  # between checkpoints
STALL_SECONDS = 5.0  # after which a silent rank ends its job
START_SECONDS = 120.0  # in which all ranks must have begun, whatever else the machine does
COMMON = (
    "--minutes", "30", "--no-video", "--log-every-seconds", "0.3", "--checkpoint-every-updates", str(INTERVAL_UPDATES),
    "--stall-seconds", f"{STALL_SECONDS:g}", "--start-seconds", f"{START_SECONDS:g}", "--max-restarts", "20",
)  # fmt: skip
"""Settings of all runs. The budget of minutes is far beyond what a run lives here: it ends one that was left behind."""


@dataclasses.dataclass(frozen=True)
class System:
    """A run under `ddrl train`.

    Attributes:
        name: on the command line.
        arguments: of `ddrl train`.
        roles: of its ranks; "worker" is one that is not the chief.
        children: what its ranks start: "actor", "simulator" or nothing.
        waits_for_workers: whether every step needs all workers, so that a silent one ends the job.
        replays: roles that write files of a replay.
        turns_with: a system whose place among the draws it takes every other time; no other draw changes.
    """

    name: str
    arguments: tuple[str, ...]
    roles: tuple[str, ...]
    children: str = ""
    waits_for_workers: bool = True
    replays: tuple[str, ...] = ()
    turns_with: str = ""

    @property
    def single(self) -> bool:
        """Whether it is one process without mpirun."""
        return len(self.roles) == 1

    @property
    def restarts_for_all(self) -> bool:
        """Whether the death of any rank starts all of them again."""
        return "restart" in self.arguments


def _ba3c(name: str, *arguments: str, roles: str, **facts: Any) -> System:
    options = ("--eval-every-updates", "300", "--eval-games", "2") if "evaluator" in roles else ("--no-evaluator",)
    return System(name, ("ba3c", "--preset", "smoke", *arguments, *options), tuple(roles.split()), **facts)


def _of(algorithm: str, *arguments: str) -> tuple[str, ...]:
    return (algorithm, "--preset", "smoke", *arguments, "--no-evaluator")


TWO_SERVERS = ("--parameter-servers", "2")
TWO_WORKERS = ("--workers", "2", "--parameter-servers", "1")
TWO_SHARDS = ("--replay-shards", "2")

_ALL = (
    _ba3c("sync", *TWO_SERVERS, roles="chief worker server evaluator"),
    _ba3c("async", "--updates", "asynchronous", *TWO_SERVERS, roles="chief worker server", waits_for_workers=False),
    _ba3c("quorum", "--quorum", "1", roles="chief worker server", waits_for_workers=False),
    _ba3c("deadline", "--quorum-deadline-seconds", "0.1", roles="chief worker server", waits_for_workers=False),
    _ba3c("dedicated", "--chief", "dedicated", roles="chief worker server"),
    _ba3c("restart", "--on-worker-loss", "restart", roles="chief worker server evaluator"),
    _ba3c("allreduce", "--exchange", "allreduce", roles="chief worker"),
    _ba3c("local-sgd", "--exchange", "local_sgd", "--local-steps", "4", roles="chief worker", turns_with="allreduce"),
    _ba3c("store", "--exchange", "central_store", roles="chief worker", waits_for_workers=False),
    _ba3c("local", "--exchange", "central_store", "--local-steps", "4", roles="chief worker", waits_for_workers=False),
    _ba3c("single", "--workers", "1", "--parameter-servers", "0", roles="chief"),
    System("dqn", _of("dqn", *TWO_WORKERS), ("chief", "worker", "server"), replays=("chief", "worker")),
    System(
        "ppo", _of("ppo", *TWO_WORKERS, "--groups", "1", "--simulator-processes", "1"), ("chief", "worker", "server"),
        children="simulator",
    ),
    System("hts", _of("hts-a2c", *TWO_WORKERS), ("chief", "worker", "server")),
    System(
        "apex-dqn", ("apex-dqn", "--preset", "smoke", *TWO_SHARDS, "--eval-every-updates", "500", "--eval-games", "2"),
        ("chief", "actor", "shard", "evaluator"), children="actor", waits_for_workers=False, replays=("shard",),
    ),
    System(
        "apex-dpg", _of("apex-dpg", *TWO_SHARDS, "--parameter-servers", "1"), ("chief", "actor", "server", "shard"),
        children="actor", waits_for_workers=False, replays=("shard",),
    ),
)  # fmt: skip
SYSTEMS = {system.name: system for system in _ALL}
