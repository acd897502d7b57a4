"""Makes a drawn fault happen: brings a run to the moment, breaks and watches it, and checks what it leaves behind."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

from ddrl.bench.faults import processes, records
from ddrl.bench.faults.bounds import ASKED, BEGIN_SECONDS, FULL_SECONDS, HOLD_SECONDS, SETTLE_SECONDS, Bound, bound
from ddrl.bench.faults.draws import SYSTEMS, Draw
from ddrl.bench.faults.outcome import NEITHER, Outcome, judge
from ddrl.bench.faults.processes import Process, send
from ddrl.bench.faults.runs import GONE_SECONDS, Run
from ddrl.rundir import numbered
from ddrl.wording import counted

FIND_SECONDS = 30.0  # for a possible victim to start
SAVE_SECONDS = 30.0  # for the next checkpoint to begin


class Unready(Exception):
    """A run could not be brought to the moment of a fault."""


class Conductor:
    """Makes faults one after another in the same run while it survives them; keeps the directories of bad outcomes."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._alive: Run | None = None

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, *error: object) -> None:
        if self._alive is not None:
            self._alive.destroy()
            self._drop()

    @property
    def _run(self) -> Run:
        assert self._alive is not None
        return self._alive

    def fault(self, draw: Draw, last: bool) -> Outcome:
        """Makes one fault happen and returns its outcome; if it is the run's `last`, also ends and checks the run."""
        began, limit = time.monotonic(), bound(draw)
        outcome = Outcome(draw.index, draw.system, draw.kind, draw.victim, draw.starting)
        try:
            self._prepare(draw)
            Fault(self._run, draw, limit, outcome).happen()
            if last and not judge(outcome, limit):
                outcome.trouble += self._end()
        except Unready as error:
            outcome.trouble.append(str(error))
        outcome.bad = judge(outcome, limit)
        if outcome.bad:
            outcome.directory = str(self._run.path)
            self._run.destroy()
            self._alive = None
        elif last:
            self._drop()
        outcome.whole_seconds = round(time.monotonic() - began, 2)
        return outcome

    def _prepare(self, draw: Draw) -> None:
        """Brings the run to the moment of the fault: it trains or starts, and there is a victim."""
        if self._alive is None:
            self._alive = Run(SYSTEMS[draw.system], self._directory, _free(self._directory, f"run-{draw.index:05d}"))
            self._begin()
        if draw.starting:
            self._end_for_next()
            self._run.begin()
        elif not victims(self._run, draw):
            self._end_for_next()
            self._begin()
        self._run.wait(draw.delay)
        end = time.monotonic() + FIND_SECONDS
        while not victims(self._run, draw):
            if time.monotonic() > end or self._run.status() is not None:
                raise Unready(f"there is no {draw.victim} to break; see {self._run.path}")
            time.sleep(0.05)

    def _begin(self) -> None:
        self._run.begin()
        if not self._run.wait_until_trained(BEGIN_SECONDS):
            raise Unready(f"the run does not train within {BEGIN_SECONDS:g} s; see {self._run.path}")

    def _end_for_next(self) -> None:
        if trouble := self._end():
            raise Unready(f"before the fault: {'; '.join(trouble)}")

    def _end(self, again: bool = True) -> list[str]:
        """Ends the run as a user would; returns what went wrong.

        If files are left, the run is started and ended once more: a rank that died while the others went on leaves a
        partly written file until the next start.
        """
        run = self._run
        run.ask_to_end()
        run.wait(ASKED)
        status = run.status()
        if status is None:
            return [f"did not end within {ASKED:g} s when it was asked to"]
        left = run.wait_gone(time.monotonic() + GONE_SECONDS)
        wrong = [f"exit status {status} when it was asked to end"] if status else []
        wrong += [f"{counted(left, 'process')} left when it had ended"] if left else []
        wrong += [f"unsound when it had ended: {text}" for text in run.unsound()]
        files = run.files_left()
        if files and again and not wrong:
            self._begin()
            return self._end(again=False)
        return wrong + ([f"files left when it had ended: {', '.join(files)}"] if files else [])

    def _drop(self) -> None:
        """Deletes all files of the run."""
        for path in self._run.kept:
            remove(path)
        self._alive = None


def remove(path: Path) -> None:
    """Deletes a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _free(directory: Path, name: str) -> str:
    """The name, with a number appended if the directory already has a run of that name."""
    return next(each for each in numbered(name) if not (directory / each).exists())


def victims(run: Run, draw: Draw) -> list[Process]:
    """The living processes to which the fault may happen now."""
    return run.children(draw.victim) if draw.kind.startswith("child") else run.victims(draw.victim)


class Fault:
    """One fault in a run that has been brought to its moment."""

    def __init__(self, run: Run, draw: Draw, limit: Bound, outcome: Outcome):
        self._run, self._draw, self._limit, self._outcome = run, draw, limit, outcome
        run.read()
        self._since, self._update = len(run.lines), records.update(run.lines)

    def happen(self) -> None:
        """Breaks the run, watches what becomes of it, and fills in the outcome."""
        run, outcome = self._run, self._outcome
        at = self._break()
        self._watch(at)
        if outcome.became == NEITHER:
            return
        outcome.unsound = run.unsound()
        if outcome.became == "ended":
            run.begin()
            outcome.resumed = run.wait_until_trained(BEGIN_SECONDS)
        elif "restarted" in records.names(run.lines[self._since :]):
            run.wait(BEGIN_SECONDS, self._saved_again)
        most = self._update if self._draw.kind.startswith("disk") else None
        outcome.updates_lost = records.lost(run.lines, self._since, most)
        outcome.lag = records.lag(run.lines) + records.unsaved(run.lines, self._since)
        if outcome.resumed is not False:
            outcome.files_left = run.files_left()

    def _break(self) -> float:
        """Breaks the run; returns the time, by the monotonic clock, from which the bound counts."""
        run, draw = self._run, self._draw
        possible = victims(run, draw)
        if draw.kind.startswith("disk"):
            return self._fill()
        victim = possible[int(draw.which * len(possible))]
        if draw.kind == "saving-kill":
            where = run.path / "checkpoints"
            if draw.victim != "chief" or draw.which < 0.5:
                where = run.saves_in(victim, draw.victim)
            if not processes.kill_while_saving(victim.pid, where, draw, SAVE_SECONDS):
                self._outcome.trouble.append(f"nothing was saved in {where} for {SAVE_SECONDS:g} s")
            self._outcome.caught = any(where.glob(".*.tmp"))
            return time.monotonic()
        at = time.monotonic()
        send(victim.pid, processes.signal_of(draw))
        return self._hold(victim) if self._limit.held else at

    def _hold(self, victim: Process) -> float:
        """Keeps the process stopped for a while, then wakes it or asks the run to end; returns the time of that."""
        run = self._run
        run.wait(SETTLE_SECONDS)
        before = len(run.lines)
        run.wait(HOLD_SECONDS)
        if not self._draw.wakes:
            if not records.trains(run.lines[before:]):
                self._outcome.trouble.append(f"no updates were made while {self._draw.victim} was silent")
            run.ask_to_end()
        else:
            send(victim.pid, signal.SIGCONT)
        return time.monotonic()

    def _fill(self) -> float:
        run, draw = self._run, self._draw
        at = time.monotonic()
        processes.limit_files(run.living(), processes.room(run.path, draw))
        run.wait(FULL_SECONDS)
        if draw.kind == "disk-stays-full":
            if run.status() is None:
                run.ask_to_end()
            return at
        for _ in range(3):  # a process may start another one between the listing and the limit
            processes.limit_files(run.living())
            run.wait(0.2)
        return at

    def _watch(self, at: float) -> None:
        """Waits until the run has ended, or goes on."""
        run, limit, outcome = self._run, self._limit, self._outcome
        run.wait(at + SETTLE_SECONDS - time.monotonic())
        self._settled = len(run.lines)
        end = at + limit.seconds
        if limit.becomes != "ends" and run.wait(end - time.monotonic(), self._goes_on):
            outcome.became = "went on"
        else:
            run.wait(end - time.monotonic())
            outcome.status = run.status()
            if outcome.status is not None:
                alone = outcome.status == -signal.SIGKILL
                outcome.processes_left = run.wait_gone(end if alone else time.monotonic() + GONE_SECONDS)
                outcome.became = "ended"
        outcome.seconds = round(time.monotonic() - at, 2)

    def _goes_on(self) -> bool:
        if self._limit.again:
            since = self._run.lines[self._since :]
            return {"restarted", "resumed"} <= records.names(since) and records.trains(since)
        return records.trains(self._run.lines[self._settled :])

    def _saved_again(self) -> bool:
        since = self._run.lines[self._since :]
        last = max((i for i, record in enumerate(since) if record.get("name") == "resumed"), default=0)
        return "checkpoint" in records.names(since[last:])
