"""`ddrl bench NAME`: each benchmark is a function of ddrl.bench from argv to the exit status."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import NamedTuple

from ddrl.checks import did_you_mean
from ddrl.errors import UsageError


class Entry(NamedTuple):
    """A benchmark: module of ddrl.bench and function, and one line of help."""

    function: str
    about: str


BENCHMARKS = {
    "roofline": Entry(
        "roofline:main", "emulation, inference and gradient alone on this machine, and what they allow together"
    ),
    "train": Entry("train:main", "end to end, achieved / roofline"),
    "profile": Entry(
        "profile.command:main", "where an update's time goes, by thread and part; a trace file for Perfetto"
    ),
    "peers": Entry("peers:main", "an algorithm here and in Stable-Baselines3, Sample Factory or RLlib, in turns"),
    "learning": Entry(
        "learning:main", "agent steps that PPO needs to a score, here and in Stable-Baselines3, over seeds"
    ),
    "replay": Entry(
        "replay:main", "samples/s of a prioritized replay while transitions come in; its sum tree over sizes"
    ),
    "networks": Entry("networks:main", "gradient and inference of networks, a user's too, beside each other"),
    "agent": Entry("agent:main", "the Python interface: its import, one action, and how near exported copies are"),
    "exchange": Entry("emulated.exchange:exchange", "one synchronous step, beside bare MPI and TensorFlow's gRPC"),
    "idle": Entry("idle:main", "processor time of roles that wait"),
    "faults": Entry(
        "faults.command:main", "real runs broken in all known ways: what becomes of them, what is left or lost"
    ),
    "fuzz": Entry(
        "fuzz:main", "flipped bits in run directories, odd inputs at the parsers: is anything wrong accepted"
    ),
    "soak": Entry("soak:main", "hours of training: does the memory of any process grow"),
    "scaling": Entry(
        "emulated.exchange:scaling", "updates/s over the number of workers, which sleep instead of computing"
    ),
    "stragglers": Entry("emulated.exchange:stragglers", "waiting for all, a quorum and a deadline, with slow workers"),
    "actors": Entry("emulated.apex:actors", "inserts/s over the number of Ape-X's actors, which sleep"),
    "learner": Entry("emulated.apex:learner", "updates/s of Ape-X's learner while emulated actors feed the replay"),
}
HELP = """usage: ddrl bench NAME [OPTIONS]

{benchmarks}

`ddrl bench NAME --help` explains the options; --json - prints one JSON object.
"""


def main(argv: Sequence[str]) -> int:
    """Runs one benchmark."""
    if argv and argv[0] in ("-h", "--help"):
        lines = [f"  {name:<10} {entry.about}" for name, entry in BENCHMARKS.items()]
        print(HELP.format(benchmarks="\n".join(lines)), end="")
        return 0
    if not argv:
        raise UsageError(f"bench: name what to measure, one of {', '.join(BENCHMARKS)}")
    if argv[0] not in BENCHMARKS:
        meant = did_you_mean(argv[0], BENCHMARKS) or f"; use one of {', '.join(BENCHMARKS)}"
        raise UsageError(f"bench {argv[0]}: no such benchmark{meant}")
    module, _, function = BENCHMARKS[argv[0]].function.partition(":")
    return int(getattr(importlib.import_module(f"ddrl.bench.{module}"), function)(list(argv[1:])) or 0)
