"""Flips single bits in copies of run directories, and compares what every reader loads with what it loaded before."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddrl import rundir
from ddrl.bench.fuzz_readings import Readers, Reading
from ddrl.errors import UsageError
from ddrl.programs import python_command

ONE_PROCESS = ("--workers", "1", "--parameter-servers", "0")
ALGORITHMS = {"ba3c": ONE_PROCESS, "dqn": ONE_PROCESS, "apex-dqn": ("--replay-shards", "2")}
RUN = (
    "--preset", "smoke", "--minutes", "0", "--no-video", "--checkpoint-every-updates", "20", "--max-updates", "60",
    "--eval-games", "4", "--eval-every-updates", "20",
)  # fmt: skip
RESUME = ("--max-updates", "80", "--learning-rate", "0.0007")  # so that there is a config-0.json
TRAIN_SECONDS = 300.0
PROGRESS_SECONDS = 10.0
CURVE_EVERY = 20  # flips per drawn learning curve, on average: drawing takes longer than all the rest
BEGINNINGS = ("resume", "evaluation", "update")


class Kind(NamedTuple):
    """One kind of file in a run directory.

    Attributes:
        pattern: regular expression for their paths in the run directory.
        weight: how often this kind is drawn, relative to the others.
        readers: the readers that read these files; empty: all readers run, and should see no difference.
        unread: why a flip in these files is harmless; empty where it is not.
    """

    name: str
    pattern: str
    weight: int
    readers: tuple[str, ...] = ()
    unread: str = ""


KINDS = (
    Kind("checkpoint", r"checkpoints/update-.*\.npz", 30, BEGINNINGS),
    Kind("replay", r"replay/.*\.bin", 30, BEGINNINGS),
    Kind("unnamed replay", "", 2, unread="of a checkpoint that is gone; removed at the next save"),
    Kind("config.json", r"config\.json", 20, (*BEGINNINGS, "metrics")),
    Kind("config-N.json", r"config-\d+\.json", 10, BEGINNINGS),
    Kind("metrics.jsonl", r"metrics\.jsonl", 30, ("metrics",)),
    Kind("result.json", r"result\.json", 20, ("end",)),
    Kind("log.txt", r"log\.txt", 2, unread="read by people"),
    Kind("ranks/N", r"ranks/.*", 2, unread="read while a run goes on, and written anew at the next start"),
    Kind("events", r"events\.out\..*", 2, unread="read by TensorBoard, with checksums of its own"),
    Kind("pictures", r".*\.png|.*\.mp4", 2, unread="drawn again at the next end"),
    Kind("best.npz", r"checkpoints/best\.npz", 10, ("best",)),
)
REPLAY, UNNAMED = KINDS[1:3]
REFUSED, FELL_BACK, HARMLESS, CHANGED, TRACEBACK = "refused", "fell back", "harmless", "changed", "tracebacks"
# refused: the reader refused the file, or left out the damaged lines and counted them.
# fell back: the reader used an older checkpoint.
OUTCOMES = (REFUSED, FELL_BACK, HARMLESS, CHANGED, TRACEBACK)
MARK = "made-by-bench-fuzz"  # file in a directory whose runs were made by this command, which may replace them


class Flip(NamedTuple):
    """One flipped bit and what came of it.

    Attributes:
        why: for a bad outcome, what the reader did; else empty.
    """

    kind: str
    file: str
    byte: int
    bit: int
    outcome: str
    why: str = ""


def make_runs(directory: Path, names: Sequence[str]) -> dict[str, Path]:
    """Trains those of the named runs that are missing or incomplete; returns name -> run directory.

    Raises:
        UsageError: a run failed, or the directory holds runs that this command did not make.
    """
    runs = {name: directory / name for name in names}
    mark = directory / MARK
    if not mark.exists():
        if strange := [str(run) for run in runs.values() if os.path.lexists(run)]:
            raise UsageError(
                f"--directory {directory}: {strange[0]} was not made by this command; name another directory"
            )
        mark.touch()
    for name, run in runs.items():
        if (rundir.read_json(run / rundir.RESULT) or {}).get("update") == 80:
            continue
        shutil.rmtree(run, ignore_errors=True)
        for what in ([name, *RUN, *ALGORITHMS[name], "--run-dir", str(run)], ["--resume", str(run), *RESUME]):
            print(f"training {name}: ddrl train {' '.join(what)}", file=sys.stderr, flush=True)
            _train(what)
    return runs


def _train(arguments: Sequence[str]) -> None:
    command = [*python_command("ddrl.cli"), "train", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRAIN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"ddrl train {' '.join(arguments)} did not end within {TRAIN_SECONDS:g} s") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise UsageError(f"ddrl train {' '.join(arguments)} failed: {' '.join(said)}")


class Flips:
    """Flips bits in copies of runs.

    Args:
        runs: name -> run directory; each is copied into `directory` and not changed itself.
        directory: holds the copies.
        seed: seed of the choice of files and bits.

    Raises:
        UsageError: a run cannot be read even without a flip.
    """

    def __init__(self, runs: Mapping[str, Path], directory: Path, seed: int):
        self._random = random.Random(seed)
        self._readers: dict[str, Readers] = {}
        self._whole: dict[str, dict[str, Reading]] = {}
        self._files: dict[Kind, list[tuple[str, Path]]] = {}
        for name, run in runs.items():
            copy = Path(shutil.copytree(run, directory / name))
            self._readers[name] = Readers(copy)
            self._whole[name] = self._readers[name].read(curve=True)
            wrong = [f"{reader}: {reading}" for reader, reading in self._whole[name].items() if reading.content is None]
            if wrong:
                raise UsageError(f"the run in {run} cannot be read as it is: {wrong[0]:.300}")
            for file in sorted(copy.rglob("*")):
                kind = kind_of(file.relative_to(copy).as_posix())
                if kind is REPLAY and file not in self._readers[name].replays:
                    kind = UNNAMED
                if kind and file.is_file() and file.stat().st_size:
                    self._files.setdefault(kind, []).append((name, file))

    def close(self) -> None:
        for readers in self._readers.values():
            readers.close()

    def flip(self) -> Flip:
        """Flips one bit, runs the readers and flips it back; draws a kind of file, then a file, then the bit."""
        (kind,) = self._random.choices(list(self._files), [kind.weight for kind in self._files])
        name, file = self._random.choice(self._files[kind])
        byte, bit = self._random.randrange(file.stat().st_size), self._random.randrange(8)
        _flip(file, byte, bit)
        try:
            readings = self._readers[name].read(kind.readers, curve=not self._random.randrange(CURVE_EVERY))
        finally:
            _flip(file, byte, bit)
        outcome, why = judge(self._whole[name], readings)
        if kind.unread and outcome == REFUSED:
            outcome, why = CHANGED, "refused for a file that nobody reads"
        return Flip(kind.name, f"{name}/{file.relative_to(self._readers[name].run)}", byte, bit, outcome, why)

    def check(self) -> None:
        """Raises RuntimeError if the readers no longer load the same from the copies as at the start."""
        for name, readers in self._readers.items():
            if judge(self._whole[name], readers.read()) != (HARMLESS, ""):
                raise RuntimeError(f"the copy of {name} was not restored")


def kind_of(path: str) -> Kind | None:
    """The kind of a file, from its path in the run directory; None for a file that is of no interest."""
    return next((kind for kind in KINDS if kind.pattern and re.fullmatch(kind.pattern, path)), None)


def judge(whole: Mapping[str, Reading], readings: Mapping[str, Reading]) -> tuple[str, str]:
    """The worst outcome of all readers, and why it is bad (empty if it is not).

    Args:
        whole: the reader's name -> its reading without the flip.
        readings: the same with the flip.
    """
    for reader, reading in readings.items():
        if reading.trouble:
            return TRACEBACK, f"{reader}: {reading.trouble}"
    outcome = HARMLESS
    for reader, reading in readings.items():
        if reading.content is None:
            outcome = REFUSED if outcome == HARMLESS else outcome
        elif reading.content != whole[reader].content:
            fell_back = reader in ("resume", "evaluation") and reading.refused != whole[reader].refused
            if fell_back and _is_older(reader, reading, whole):
                outcome = FELL_BACK
            elif reader == "metrics" and reading.refused and _are_fewer(reading, whole[reader]):
                outcome = REFUSED if outcome == HARMLESS else outcome
            else:
                return CHANGED, f"{reader}: {_first_difference(whole[reader], reading)}"
        elif reader == "metrics" and reading.refused:
            return CHANGED, "metrics: a line is said to be damaged, and none is missing"
    return outcome, ""


def _is_older(reader: str, reading: Reading, whole: Mapping[str, Reading]) -> bool:
    """Whether the reader loaded exactly the content of one of the numbered checkpoints."""
    ours = {name: value for name, value in _content(reading).items() if name.startswith("checkpoint/")}
    older = [_content(each) for name, each in whole.items() if name.startswith("update-")]
    if reader == "resume":
        return reading.content in older
    return any(ours == {n: v for n, v in each.items() if n.startswith("checkpoint/")} for each in older)


def _content(reading: Reading) -> Mapping[str, object]:
    return reading.content or {}


def _are_fewer(reading: Reading, whole: Reading) -> bool:
    return _content(reading).keys() < _content(whole).keys()


def _first_difference(whole: Reading, reading: Reading) -> str:
    before, after = _content(whole), _content(reading)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            return f"{name:.100} was {before.get(name)!s:.80} and is {after.get(name)!s:.80}"
    return "nothing"


def _flip(file: Path, byte: int, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(byte)
        value = opened.read(1)[0]
        opened.seek(byte)
        opened.write(bytes([value ^ 1 << bit]))


def flip_many(flips: Flips, count: int) -> list[Flip]:
    """Flips `count` bits one after another, and reports the progress on standard error."""
    began = said = time.monotonic()
    done: list[Flip] = []
    while len(done) < count:
        done.append(flips.flip())
        now = time.monotonic()
        if now - said >= PROGRESS_SECONDS:
            said, rate = now, len(done) / (now - began)
            left = (count - len(done)) / rate
            print(f"{len(done):,} of {count:,} flips, {rate:.0f}/s, {left:.0f} s left", file=sys.stderr, flush=True)
    flips.check()
    return done


def table(done: Sequence[Flip]) -> dict[str, dict[str, int]]:
    """For each kind of file that was flipped, the numbers of flips and of each outcome."""
    counted = {kind.name: Counter(flip.outcome for flip in done if flip.kind == kind.name) for kind in KINDS}
    columns = ("flips", *OUTCOMES)
    return {
        kind: dict(zip(columns, (of_kind.total(), *(of_kind[each] for each in OUTCOMES))))
        for kind, of_kind in counted.items()
        if of_kind
    }
