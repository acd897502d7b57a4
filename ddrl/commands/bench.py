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
        "roofline:main", "Emulation, inference, and gradient alone on this machine, and what they allow together."
    ),
    "train": Entry("train:main", "A run end to end, and its ratio to the roofline."),
    "profile": Entry(
        "profile.command:main", "Where the time of an update goes, by thread and part, with a trace file for Perfetto."
    ),
    "peers": Entry("peers:main", "An algorithm here and in Stable-Baselines3, Sample Factory, or RLlib, in turns."),
    "learning": Entry(
        "learning:main", "Agent steps that PPO needs to reach a score, here and in Stable-Baselines3, over seeds."
    ),
    "replay": Entry(
        "replay:main", "Samples/s of a prioritized replay while transitions come in, and of its sum tree by size."
    ),
    "networks": Entry("networks:main", "Gradient and inference of networks side by side, including a user's own."),
    "agent": Entry("agent:main", "The Python interface: its import, one action, and how close exported copies are."),
    "exchange": Entry("emulated.exchange:exchange", "One synchronous step, beside bare MPI and TensorFlow's gRPC."),
    "idle": Entry("idle:main", "Processor time of roles that wait."),
    "board": Entry("board:main", "How fast `ddrl board` opens with many long runs, and how much memory it takes."),
    "faults": Entry(
        "faults.command:main", "Real runs broken in all known ways: what becomes of them, and what is kept or lost."
    ),
    "fuzz": Entry(
        "fuzz:main", "Flipped bits in run directories and odd input to the parsers: is anything wrong accepted?"
    ),
    "soak": Entry("soak:main", "Hours of training: does any process's memory grow?"),
    "scaling": Entry("emulated.exchange:scaling", "Updates/s by number of workers, which sleep instead of computing."),
    "stragglers": Entry(
        "emulated.exchange:stragglers", "Waiting for all workers, a quorum, or a deadline, while some workers are slow."
    ),
    "actors": Entry("emulated.apex:actors", "Inserts/s by number of Ape-X actors, which sleep."),
    "learner": Entry("emulated.apex:learner", "Updates/s of Ape-X's learner while emulated actors feed the replay."),
}


def main(argv: Sequence[str]) -> int:
    """Runs one benchmark."""
    if argv and argv[0] in ("-h", "--help"):
        from ddrl.options.help_page import Entry as Line
        from ddrl.options.help_page import Section, page

        section = Section("benchmarks", [Line(name, entry.about) for name, entry in BENCHMARKS.items()])
        closing = "`ddrl bench NAME --help` explains the options; --json - prints one JSON object."
        print(page("ddrl bench NAME [OPTIONS]", [], [section], [closing]), end="")
        return 0
    if not argv:
        raise UsageError(f"bench: say what to measure, one of {', '.join(BENCHMARKS)}")
    if argv[0] not in BENCHMARKS:
        meant = did_you_mean(argv[0], BENCHMARKS) or f"; use one of {', '.join(BENCHMARKS)}"
        raise UsageError(f"bench {argv[0]}: no such benchmark{meant}")
    module, _, function = BENCHMARKS[argv[0]].function.partition(":")
    return int(getattr(importlib.import_module(f"ddrl.bench.{module}"), function)(list(argv[1:])) or 0)
