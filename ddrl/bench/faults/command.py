"""The command line of `ddrl bench faults`."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.bench.faults.bounds import bound
from ddrl.bench.faults.conduct import Conductor, remove
from ddrl.bench.faults.draws import BLOCK, KINDS, SYSTEMS, Draw, draw
from ddrl.bench.faults.outcome import Outcome, summary
from ddrl.errors import UsageError, written
from ddrl.json_lines import JsonLines
from ddrl.wording import counted

LOG = "faults.jsonl"
RUN_NAME = re.compile(r"(run-\d{5,}(?:-\d+)?)(\.txt|\.tmp)?")


@dataclasses.dataclass(frozen=True)
class FaultsArguments(BenchmarkArguments):
    """Break small real runs of every exchange, schedule and replay in all known ways, and look at what becomes of them.

    A run must go on or end within its bound, leave no process and no file, keep sound checkpoints, train again when
    it is resumed, and lose no more updates than those since its last checkpoint."""

    faults: int = 100
    """Number of faults, including those of an earlier call with the same --directory."""
    seed: int = 1
    """Seed of the draws: fault I of a seed always has the same system, kind, victim, and moment."""
    directory: str = ""
    """Where outcomes (faults.jsonl) and the runs of bad ones are kept; a later call continues (default: a temporary
    directory, which is kept if something was bad)."""
    systems: tuple[str, ...] = tuple(SYSTEMS)
    """Runs to break (default: all)."""
    kinds: tuple[str, ...] = tuple(KINDS)
    """Faults to draw from (default: all)."""
    only: int = -1
    """Do only this draw, in a new run (-1: all)."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "faults")
        checks.at_least(self, 0, "seed")
        checks.at_least(self, -1, "only")
        for name, known in (("systems", SYSTEMS), ("kinds", KINDS)):
            given = getattr(self, name)
            if unknown := [value for value in given if value not in known]:
                raise UsageError(f"--{name} {unknown[0]}: there is none of that name; use some of {', '.join(known)}")
            if not given:
                raise UsageError(f"--{name}: name at least one of {', '.join(known)}")

    def draw(self, index: int) -> Draw:
        """The fault with this index. Raises UsageError if none of the kinds can happen to any of the systems."""
        try:
            return draw(self.seed, index, self.systems, self.kinds)
        except ValueError as error:
            names = f"--systems {' '.join(self.systems)} --kinds {' '.join(self.kinds)}"
            raise UsageError(f"{names}: {error}; name others") from error


def measure(arguments: FaultsArguments) -> dict[str, Any]:
    """Breaks runs and checks them; returns the figures by kind of fault, and the bad outcomes.

    Raises:
        UsageError: the directory cannot be used, or has outcomes of other draws.
    """
    where = Path(arguments.directory or tempfile.mkdtemp(prefix="ddrl-faults-"))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)  # so that the living run is ended, too
    with written(f"--directory {where}", "name one that can be written"):
        where.mkdir(parents=True, exist_ok=True)
        _check_ours(where)
        with held(where):
            outcomes = all_faults(arguments, where)
    values = summary(outcomes, [bound(arguments.draw(outcome.index)).seconds for outcome in outcomes])
    if not arguments.directory and not values["bad"]:
        shutil.rmtree(where, ignore_errors=True)
    return values


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _check_ours(directory: Path) -> None:
    """Raises UsageError if the directory has runs but no log: only runs beside the log are ours and may be removed."""
    if not (directory / LOG).exists() and (
        others := [path for path in directory.iterdir() if RUN_NAME.fullmatch(path.name)]
    ):
        raise UsageError(
            f"--directory {directory}: {others[0].name} was not made by this command; name another directory"
        )


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Locks a directory, so that no other call uses it at the same time.

    Raises:
        UsageError: another call uses it.
    """
    with (directory / LOG).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"--directory {directory}: another call is using it; wait until it ends, or name another"
            ) from error
        yield


def systems_and_kinds() -> str:
    """A text that lists and explains all systems and kinds of faults."""
    systems = {name: f"ddrl train {' '.join(system.arguments)}" for name, system in SYSTEMS.items()}
    lines = lambda entries: [f"  {name:<16} {what}" for name, what in entries.items()]  # noqa: E731
    return "\n".join(["systems:", *lines(systems), "", "kinds:", *lines(KINDS)])


def all_faults(arguments: FaultsArguments, directory: Path) -> list[Outcome]:
    """Makes the faults; returns all outcomes, including those that the directory already has.

    With `--only`, it makes and returns only that fault.

    Raises:
        UsageError: the directory has outcomes of other draws.
    """
    if arguments.only >= 0:
        with Conductor(directory) as conductor:
            outcome = conductor.fault(arguments.draw(arguments.only), last=True)
        print(line_of(outcome), file=sys.stderr, flush=True)
        return [outcome]
    done = earlier(arguments, directory / LOG)
    _sweep(directory, {Path(outcome.directory).name for outcome in done if outcome.directory})
    began, first, count = time.monotonic(), len(done), arguments.faults
    with Conductor(directory) as conductor, (directory / LOG).open("a") as file:
        for index in range(first, count):
            last = (index + 1) % BLOCK == 0 or index + 1 == count
            done.append(conductor.fault(arguments.draw(index), last))
            file.write(json.dumps(dataclasses.asdict(done[-1])) + "\n")
            file.flush()
            rate, bad = (time.monotonic() - began) / (index + 1 - first), sum(bool(outcome.bad) for outcome in done)
            left = f"{rate:.1f} s a fault, {bad} bad, {rate * (count - index - 1) / 60:.0f} min left"
            print(f"{index + 1}/{count} {line_of(done[-1])} | {left}", file=sys.stderr, flush=True)
    return done


def earlier(arguments: FaultsArguments, log: Path) -> list[Outcome]:
    """The outcomes that an earlier call wrote.

    Raises:
        UsageError: they are outcomes of other draws.
    """
    done = [Outcome(**record) for record in JsonLines(log).read()][: arguments.faults]
    for index, outcome in enumerate(done):
        drawn = arguments.draw(index)
        if any(getattr(outcome, name) != getattr(drawn, name) for name in ("index", "system", "kind", "victim")):
            raise UsageError(
                f"--directory {log.parent}: fault {index} there was drawn with another --seed, --systems, or --kinds; "
                "give those of the earlier call, or name another directory"
            )
    return done


def _sweep(directory: Path, kept: set[str]) -> None:
    """Removes the runs that an interrupted earlier call left behind; those in `kept` stay."""
    for path in directory.iterdir():
        match = RUN_NAME.fullmatch(path.name)
        if match and match[1] not in kept:
            remove(path)


def line_of(outcome: Outcome) -> str:
    """One line about an outcome."""
    victim = f" of {outcome.victim}" if outcome.victim not in ("mpirun", "launcher", "all") else ""
    when = " while starting" if outcome.starting else ""
    status = f" (status {outcome.status})" if outcome.status is not None else ""
    text = f"{outcome.system}: {outcome.kind}{victim}{when}: {outcome.became}{status} after {outcome.seconds:.1f} s"
    lost = f", {counted(outcome.updates_lost, 'update')} lost" if outcome.updates_lost else ""
    return text + lost + (f"; BAD: {'; '.join(outcome.bad)}" if outcome.bad else "")


main = Benchmark(
    name="faults",
    arguments=FaultsArguments,
    measure=measure,
    title="faults of seed {options.seed}",
    details=systems_and_kinds(),
    failed=lambda values: bool(values["bad"]),
)
