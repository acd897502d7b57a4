"""`python -m tests.mutants`: does a test notice each of the faults of the tables?"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.runner import Runner
from tests.mutants.tables import MUTANTS

ROOT = Path(__file__).parents[2]
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 where all mutants were caught, 1 where one survived or a test fails without any."""
    options = parser().parse_args(arguments)
    chosen = select(options.names)
    if isinstance(chosen, str):
        print(f"mutants: {chosen}", file=sys.stderr)
        return 2
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:<44} {mutant.path}: {mutant.why}")
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Runner(ROOT, jobs=options.jobs, limit_seconds=options.limit) as runner:
            return check(runner, chosen)
    except KeyboardInterrupt:
        print("mutants: interrupted; everything is as it was", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Puts one named fault after the other into a copy of the source, and runs the tests that must"
        " notice it. The working tree is only read. The exit status is 0 if every fault was noticed, and 1 otherwise.",
    )
    made.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="The name of a mutant, or the beginning of several names. Without any, all mutants are tried.",
    )
    made.add_argument(
        "--list", action="store_true", help="Print the mutants and what each would break, and run nothing."
    )
    made.add_argument(
        "--jobs",
        type=positive,
        default=1,
        metavar="N",
        help="Try this many mutants at once, each in a copy of its own. The default is 1.",
    )
    made.add_argument(
        "--limit",
        type=positive,
        default=300,
        metavar="SECONDS",
        help="End the tests of a mutant after this many seconds, which counts as caught. The default is 300.",
    )
    return made


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1.")
    return int(text)


def select(names: Sequence[str]) -> list[Mutant] | str:
    """The mutants with these names or beginnings of names, in the order of the tables; or what is wrong with a name."""
    for name in names:
        if not any(mutant.name.startswith(name) for mutant in MUTANTS):
            return f"no mutant has a name that begins with {name!r}; --list prints all of them"
    exact = {mutant.name for mutant in MUTANTS} & set(names)
    beginnings = tuple(set(names) - exact)
    return [m for m in MUTANTS if not names or m.name in exact or (beginnings and m.name.startswith(beginnings))]


def check(runner: Runner, mutants: Sequence[Mutant]) -> int:
    """Tries the mutants once their tests have passed without them, prints what is found, and returns the status."""
    begin = time.monotonic()
    print(f"The tests of {len(mutants)} mutants, on the source as it is ...", flush=True)
    trouble = runner.unchanged(mutants)
    if trouble:
        print(f"{trouble.rstrip()}\nmutants: these tests do not pass on the source as it is", file=sys.stderr)
        return 1
    print(f"... pass ({time.monotonic() - begin:.0f} s).", flush=True)
    outcomes = runner.run(mutants, lambda outcome: print(outcome, flush=True))
    survivors = [outcome.name for outcome in outcomes if not outcome.caught]
    print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} caught in {time.monotonic() - begin:.0f} s", end="")
    print(f"; survivors: {', '.join(survivors)}" if survivors else "; none survived")
    return 1 if survivors else 0


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
