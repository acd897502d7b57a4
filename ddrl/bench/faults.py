"""`ddrl bench faults`: kills random ranks of a real run at random moments, and looks at what becomes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from cluster.roles import assign_roles
from ddrl import checks, rundir
from ddrl.bench.output import emit
from ddrl.checkpoint import list_checkpoints, load, version_of
from ddrl.errors import UsageError
from ddrl.launch import start
from ddrl.launch.processes import end_session

INTERVAL_UPDATES = 100  # between checkpoints
SPREAD_SECONDS = 4.0  # a kill comes so long after training was seen to go on, at most
START_SECONDS = 8.0  # and one during a start so long after the kill before it
START_SHARE = 0.15  # of the kills that end in a new start are followed by one like that
HANG_SECONDS = 120.0  # until the run trains again
POLL_SECONDS = 0.02
LOST = ("worker_lost", "evaluator_lost")
KILLS, RUN = "kills.jsonl", "run"


@dataclasses.dataclass(frozen=True)
class FaultsArguments:
    """Kill random ranks (SIGKILL) of a run on Catch at random moments; the run goes on, or starts again by itself."""

    kills: int = 100
    """How many, those of an earlier call with the same --directory included."""
    directory: str = ""
    """Where the run and the outcome of each kill are kept, to go on with later (default: nowhere)."""
    workers: int = 2
    """Workers of the run."""
    parameter_servers: int = 2
    """Its parameter servers."""
    seed: int = 1
    """Of the choice of ranks and moments."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "kills", "workers", "parameter_servers")
        checks.at_least(self, 0, "seed")


@dataclasses.dataclass
class Kill:
    """One kill and what came of it. Seconds are since the kill; None: not seen."""

    role: str
    at_start: bool
    detected_seconds: float | None = None
    training_seconds: float | None = None
    restarted: bool = False
    ended: bool = False  # the run did not start again by itself
    hung: bool = False
    updates_lost: int = 0
    checkpoint_lost: bool = False
    corrupted: int = 0


def main(argv: Sequence[str]) -> int:
    """Kills, looks and prints; returns 1 when a run hung, or lost more than it may."""
    arguments = tyro.cli(FaultsArguments, args=list(argv), prog="ddrl bench faults")
    with contextlib.ExitStack() as stack:
        where = arguments.directory or stack.enter_context(tempfile.TemporaryDirectory())
        kills = soak(arguments, Path(where))
    values = summary(kills)
    emit("kills at random", values, arguments.json, {"updates_lost": f"a checkpoint every {INTERVAL_UPDATES}"})
    bad = ("hangs", "corrupted_checkpoints", "checkpoints_lost")
    return int(any(values[name] for name in bad))


def soak(arguments: FaultsArguments, directory: Path) -> list[Kill]:
    """All kills, those that the directory has already included.

    Raises:
        UsageError: the directory cannot be written, or the run does not begin.
    """
    log = directory / KILLS
    try:
        directory.mkdir(parents=True, exist_ok=True)
        done = [Kill(**record) for record in rundir.JsonLines(log).read()]
        rng = random.Random(arguments.seed + len(done))
        with Run(arguments, directory) as run, log.open("a") as file:
            while len(done) < arguments.kills:
                done.append(run.kill(rng))
                file.write(json.dumps(dataclasses.asdict(done[-1])) + "\n")
                file.flush()
                print(f"{len(done)}: {_line(done[-1])}", file=sys.stderr, flush=True)
    except OSError as error:
        raise UsageError(f"--directory {directory}: {error.strerror}; name one that can be written") from error
    return done


class Run:
    """A run under `ddrl train`, which is begun again by hand whenever it has ended."""

    def __init__(self, arguments: FaultsArguments, directory: Path):
        self.path, self._log = directory / RUN, directory / "output.txt"
        self._sizes = ("--workers", str(arguments.workers), "--parameter-servers", str(arguments.parameter_servers))
        roles = assign_roles(arguments.workers, arguments.parameter_servers, evaluator=True)
        self._roles = {a.rank: "chief" if a.is_chief else a.role for a in roles}
        self._records = rundir.JsonLines(self.path / rundir.METRICS)
        self._lines: list[dict[str, Any]] = []
        self._starting = False  # a new start is under way, in which the next kill falls
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Run:
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            (self.path / rundir.STOP).touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=60.0)
        end_session(self._process.pid)

    def kill(self, rng: random.Random) -> Kill:
        """Kills a rank that lives, and waits until the run trains again."""
        at_start = self._starting
        if at_start:
            time.sleep(rng.uniform(0.0, START_SECONDS))
        else:
            self._wait(self._trains, "training")
            time.sleep(rng.uniform(0.0, SPREAD_SECONDS))
        self._wait(self._living, "a living rank")
        rank, pid = rng.choice(sorted(self._living().items()))
        self._read()
        seen, update, newest = len(self._lines), self._update(), self._newest()
        kill, at = Kill(self._roles[rank], at_start), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self._follow(kill, at, seen, to_start=rng.random() < START_SHARE)
        self._look_at_loss(kill, seen, update, newest)
        kill.corrupted = self._corrupted()
        return kill

    def _follow(self, kill: Kill, at: float, seen: int, to_start: bool) -> None:
        """Waits for what becomes of the run; `to_start`: only until it starts again, if it does."""
        self._starting = False
        while time.monotonic() < at + HANG_SECONDS:
            self._read()
            now, news = time.monotonic() - at, self._lines[seen:]
            names = {record.get("name") for record in news}
            result = rundir.read_json(self.path / rundir.RESULT)
            if kill.detected_seconds is None and (names & {*LOST, "restarted"} or (result and result.get("lost"))):
                kill.detected_seconds = now
            kill.restarted = kill.restarted or "restarted" in names
            if self._process.poll() is not None:
                kill.ended = True
                self._begin()
                return
            if kill.restarted and to_start:
                self._starting = True
                return
            if self._goes_on(kill, news):
                kill.training_seconds = now
                return
            time.sleep(POLL_SECONDS)
        kill.hung = True
        for pid in self._living().values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        end_session(self._process.pid, 20.0)
        self._process.wait(timeout=60.0)
        self._begin()

    def _goes_on(self, kill: Kill, news: list[dict[str, Any]]) -> bool:
        """Whether an update was made after the loss was seen, or after the new start."""
        marks = [i for i, record in enumerate(news) if record.get("name") in (*LOST, "resumed")]
        if kill.restarted:
            marks = [i for i in marks if news[i]["name"] == "resumed"]
        if not marks:
            return False
        after = [record["update"] for record in news[marks[-1] :] if record["kind"] == "train"]
        return len(after) > 1 and after[-1] > after[0]

    def _look_at_loss(self, kill: Kill, seen: int, update: int, newest: int) -> None:
        resumed = [r["update"] for r in self._lines[seen:] if r.get("name") == "resumed"]
        if resumed:
            trained = [r["update"] for r in self._until_resumed(seen) if r["kind"] == "train"]
            kill.updates_lost = max(0, [update, *trained][-1] - resumed[0])  # lines are older than the last update
            kill.checkpoint_lost = resumed[0] < newest

    def _until_resumed(self, seen: int) -> list[dict[str, Any]]:
        names = [record.get("name") for record in self._lines[seen:]]
        return self._lines[seen : seen + names.index("resumed")]

    def _begin(self) -> None:
        """Starts the run, or goes on with it; and waits until it trains and can be gone on with."""
        command = [sys.executable, "-m", "ddrl.cli", "train"]
        if list_checkpoints(self.path):
            command += ["--resume", str(self.path)]
        else:
            command += ["ba3c", "--preset", "smoke", "--run-dir", str(self.path)]
        command += [*self._sizes, "--minutes", "0", "--no-video", "--log-every-seconds", "0.3", "--max-restarts", "20"]
        command += ["--checkpoint-every-updates", str(INTERVAL_UPDATES), "--eval-every-updates", "150"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._read()
        self._start_line = len(self._lines)
        self._wait(lambda: self._trains() and list_checkpoints(self.path), "first checkpoint")

    def _trains(self) -> bool:
        self._read()
        marks = [i for i, r in enumerate(self._lines) if r.get("name") in ("resumed", "restarted")]
        since = max([self._start_line, *marks])
        updates = [record["update"] for record in self._lines[since:] if record["kind"] == "train"]
        return len(updates) > 1 and updates[-1] > updates[0]

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + 2 * HANG_SECONDS
        while not condition():
            if time.monotonic() > end or self._process.poll() is not None:
                raise UsageError(f"the run has no {what}: see {self._log} and {self.path / rundir.LOG}")
            time.sleep(POLL_SECONDS)

    def _read(self) -> None:
        self._lines += self._records.read()

    def _update(self) -> int:
        last = (r["update"] for r in reversed(self._lines) if r["kind"] == "train" or r.get("name") == "resumed")
        return next(last, 0)

    def _newest(self) -> int:
        return max(map(version_of, list_checkpoints(self.path)), default=0)

    def _living(self) -> dict[int, int]:
        """Rank -> process id."""
        found = {}
        for rank, note in start.notes(self.path).items():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{note.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                    found[rank] = note.pid
        return found

    def _corrupted(self) -> int:
        """Checkpoint files that do not load, or whose checksum does not hold."""
        bad = 0
        for path in list_checkpoints(self.path):
            try:
                load(path)
            except UsageError:
                bad += path.exists()  # one that is gone was removed for a newer one
        return bad


def summary(kills: Sequence[Kill]) -> dict[str, Any]:
    """The figures of a soak."""
    roles = sorted({kill.role for kill in kills})
    settled = [kill for kill in kills if not kill.at_start]
    restarts = [kill.training_seconds for kill in kills if kill.restarted and kill.training_seconds is not None]
    return {
        "kills": len(kills),
        "of_them": {role: sum(kill.role == role for kill in kills) for role in roles},
        "during_a_start": sum(kill.at_start for kill in kills),
        "hangs": sum(kill.hung for kill in kills),
        "corrupted_checkpoints": sum(kill.corrupted for kill in kills),
        "checkpoints_lost": sum(kill.checkpoint_lost for kill in kills),
        "new_starts": len(restarts),
        "ended_without_one": sum(kill.ended for kill in kills),
        "updates_lost": _spread([float(kill.updates_lost) for kill in kills if kill.restarted]),
        "seconds_until_seen": _spread([k.detected_seconds for k in settled if k.detected_seconds is not None]),
        "seconds_until_training_again": _spread(restarts),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "most": round(max(values), 3)} if values else {}


def _line(kill: Kill) -> str:
    facts = {name: value for name, value in dataclasses.asdict(kill).items() if value}
    texts = {name: f"{value:.2f}" if isinstance(value, float) else str(value) for name, value in facts.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())
