"""`ddrl bench NAME`: each benchmark is a module of ddrl.bench with main(argv) -> exit status."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ddrl.errors import UsageError

BENCHMARKS = {
    "roofline": "ddrl.bench.roofline_cli",
    "train": "ddrl.bench.train",
    "peers": "ddrl.bench.peers",
    "learning": "ddrl.bench.learning",
    "replay": "ddrl.bench.replay",
    "exchange": "ddrl.bench.exchange",
    "idle": "ddrl.bench.idle",
    "faults": "ddrl.bench.faults.command",
    "fuzz": "ddrl.bench.fuzz",
    "soak": "ddrl.bench.soak",
    "scaling": "ddrl.bench.scaling",
    "stragglers": "ddrl.bench.stragglers",
    "actors": "ddrl.bench.actors",
    "learner": "ddrl.bench.learner",
}
HELP = """usage: ddrl bench NAME [OPTIONS]

  roofline   emulation, inference and gradient alone on this machine, and what they allow together
  train      end to end, achieved / roofline
  peers      an algorithm here and in Stable-Baselines3, Sample Factory or RLlib, in turns
  learning   agent steps that PPO needs to a score, here and in Stable-Baselines3, over seeds
  replay     samples/s of a prioritized replay while transitions come in, and its sum tree over sizes
  exchange   milliseconds per synchronous step, beside bare MPI and TensorFlow's gRPC
  idle       processor time of roles that wait
  faults     real runs broken in all known ways: do they end or go on in time, what is left, what is lost
  fuzz       flipped bits in run directories and inputs at the parsers: is anything accepted that should not be
  soak       hours of training: does the memory of any process grow
  scaling    updates/s over the number of workers, which sleep instead of computing
  stragglers waiting for all, a quorum and a deadline, with workers that are slow on purpose
  actors     inserts/s over the number of Ape-X's actors, which sleep instead of acting
  learner    updates/s of Ape-X's learner while emulated actors feed the replay, beside its gradients alone

`ddrl bench NAME --help` explains the options; --json - prints one JSON object.
"""


def main(argv: Sequence[str]) -> int:
    """Runs one benchmark."""
    if argv and argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if not argv:
        raise UsageError(f"bench: name what to measure, one of {', '.join(BENCHMARKS)}")
    if argv[0] not in BENCHMARKS:
        raise UsageError(f"bench {argv[0]}: no such benchmark; use one of {', '.join(BENCHMARKS)}")
    return int(importlib.import_module(BENCHMARKS[argv[0]]).main(list(argv[1:])) or 0)
