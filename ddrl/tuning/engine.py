"""Runs trials on this machine, one after the other or several at once, and continues where an earlier call ended.

Each trial is a process that trains in a run directory of its own; the engine follows its metrics and reports its scores
to Optuna. A trial whose process ended too early stays `running` in the journal, until a later call continues it. A
lock for each trial keeps two calls from running the same one.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddrl import programs, run_lock, rundir
from ddrl.config import TrainConfig
from ddrl.envs.pinning import process_cores
from ddrl.errors import UsageError
from ddrl.json_lines import JsonLines
from ddrl.launch.processes import Interrupts
from ddrl.programs import python_command
from ddrl.reporting.metrics import without_undone
from ddrl.studies.engine import bound_to, duration
from ddrl.studies.measures import SCORES, last_score
from ddrl.studies.points import Point, outcome_of, state_of
from ddrl.terminal import printable
from ddrl.tuning.journal import RUNGS, WHY, distributions, locked, open_study
from ddrl.tuning.plan import Plan
from ddrl.tuning.progress import part_done, scores_at_rungs
from ddrl.tuning.space import settings_of
from ddrl.tuning.trial import order
from ddrl.wording import counted

if TYPE_CHECKING:
    import optuna

TRIAL_PROGRAM = python_command("ddrl.tuning.trial")
POLL_SECONDS = 0.5
ATTEMPTS = 3  # of one call at a trial whose process dies


class Running:
    """A trial whose process runs.

    Args:
        plan: plan of the search.
        trial: trial of the Optuna study.
        config: settings of the trial.
        cores: cores that its process may use (none: all).
    """

    def __init__(self, plan: Plan, trial: optuna.Trial, config: TrainConfig, cores: Sequence[int]) -> None:
        self.trial, self.config, self.cores = trial, config, tuple(cores)
        self.path = plan.path(trial.number)
        self.pruned, self.began = False, time.monotonic()
        self._score, self._records = plan.score, list[dict[str, Any]]()
        # What an earlier call has reported stays: Optuna would warn of each rung, and ignore it.
        self._told = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self._lines = JsonLines(self.path / rundir.METRICS)
        nowhere = subprocess.DEVNULL
        with bound_to(self.cores):
            # In a session of its own, so that Ctrl-C reaches this process alone, which asks the trial to stop.
            self.process = subprocess.Popen(
                TRIAL_PROGRAM, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: the engine sees that when it polls
            self.process.stdin.write(order(config, self.path))
            self.process.stdin.flush()

    def follow(self) -> None:
        """Reports new scores to Optuna, and asks the process to stop if Optuna finds the trial hopeless."""
        new = self._lines.read()
        if new:
            self._records = without_undone(self._records + new)
        scores = scores_at_rungs(self._records, self.config.run, self._score, RUNGS)
        for rung in sorted(scores.keys() - self._told):
            self._told.add(rung)
            self.trial.report(scores[rung], rung)
            if not self.pruned and self.trial.should_prune():
                self.pruned = True
                self.ask_to_stop()

    @property
    def part(self) -> float:
        """The share of the trial's budget that is used up (1: all of it)."""
        return max((part_done(record, self.config.run) for record in self._records), default=0.0)

    def ask_to_stop(self) -> None:
        """Asks the process to take a checkpoint and end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Has the process end without a checkpoint, as a second Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Closes the pipe to the process, which has ended."""
        if self.process.stdin is not None:
            self.process.stdin.close()


class Engine:
    """Runs the trials that are left.

    Args:
        plan: plan of the search.
        at_once: number of trials that run at the same time.
        most: number of trials that this call may run (None: all that are left).
    """

    def __init__(self, plan: Plan, at_once: int = 1, most: int | None = None) -> None:
        self.plan, self.study = plan, open_study(plan)
        self.distributions = distributions(plan.space)
        self.left = plan.trials if most is None else most
        self.slots = shares(at_once, sorted(process_cores()))
        self.running: list[Running] = []
        self.seconds: list[float] = []
        self.attempts: dict[int, int] = {}
        self._locks: dict[int, contextlib.ExitStack] = {}
        self._waits = False  # it has said so

    def run(self) -> bool:
        """Runs trials until all have ended or somebody asks to stop; returns False if somebody did."""
        programs.outlast_output()
        stopping = killing = False
        with Interrupts() as interrupts:
            try:
                while True:
                    if interrupts.stop and not stopping:
                        stopping = True
                        print("stopping: trials save a checkpoint; the same command continues from here", flush=True)
                        for each in self.running:
                            each.ask_to_stop()
                    if interrupts.kill and not killing:
                        killing = True
                        for each in self.running:
                            each.kill()
                    while not stopping and self.left and len(self.running) < len(self.slots) and self._start():
                        self.left -= 1
                    if not self.running and (stopping or not self._may_wait()):
                        return not stopping
                    self._poll()
                    time.sleep(POLL_SECONDS)
            finally:
                for each in self.running:
                    each.ask_to_stop()

    def _poll(self) -> None:
        for each in list(self.running):
            ended = each.process.poll() is not None  # asked before reading, so that nothing written last is missed
            each.follow()
            if ended:
                self.running.remove(each)
                each.close()
                self._end(each)
                self._locks.pop(each.trial.number).close()

    def _start(self) -> bool:
        """Begins a trial, or goes on with one that was interrupted; returns whether there was one."""
        taken = {core for each in self.running for core in each.cores}
        cores = next(slot for slot in self.slots if not taken & set(slot)) if len(self.slots) > 1 else ()
        while (trial := self._next()) is not None:
            try:
                config = settings_of(self.plan.of_trials, self.plan.space, trial.params)
            except UsageError as error:
                self._tell(trial, "FAIL", why=str(error))
                self._locks.pop(trial.number).close()
                self._say(trial, f"refused: {error}")
                continue
            goes_on = (self.plan.path(trial.number) / rundir.CONFIG).exists()
            self._say(trial, f"{'goes on' if goes_on else 'begins'} with {self._text(trial)}")
            self.running.append(Running(self.plan, trial, config, cores))
            return True
        return False

    def _next(self) -> optuna.Trial | None:
        """A trial to run, whose lock is held; None if there is none left.

        Other processes may be looking for one, too. Two must not both take the last trial, and none may take a trial
        that another has just got from Optuna and has not locked yet.
        """
        with locked(self.plan, "ask", wait=True):
            return self._interrupted() or self._asked()

    def _interrupted(self) -> optuna.Trial | None:
        """A trial that is `running` in the journal, though no process runs it any more."""
        from optuna.trial import Trial, TrialState

        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if frozen.number not in self._locks and self._lock(frozen.number):
                trial = Trial(self.study, frozen._trial_id)  # noqa: SLF001 - Optuna has no public way
                for name, distribution in self.distributions.items():  # its process may have ended as it drew them
                    trial._suggest(name, distribution)  # noqa: SLF001 - which keeps what was drawn
                return trial
        return None

    def _asked(self) -> optuna.Trial | None:
        """A new trial, whose lock is held; None if there are as many as the search should have."""
        if len(self.study.get_trials(deepcopy=False)) >= self.plan.trials:
            return None
        trial = self.study.ask(self.distributions)
        self._lock(trial.number)
        return trial

    def _may_wait(self) -> bool:
        """Whether to wait for a trial that is `running` in the journal: in a requeued Slurm job, since a lost node may
        seem to run it."""
        from optuna.trial import TrialState

        if not (self.left and run_lock.lost_node_seconds()):
            return False
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if running and not self._waits:
            self._waits = True
            run_lock.tell_of_wait(self.plan.path(running[0].number))
        return bool(running)

    def _lock(self, number: int) -> bool:
        stack = contextlib.ExitStack()
        if stack.enter_context(locked(self.plan, f"{number:04d}")):
            self._locks[number] = stack
            return True
        stack.close()
        return False

    def _end(self, each: Running) -> None:
        """Tells Optuna how a trial ended, and prints it."""
        state, number = state_of(each.path), each.trial.number
        took = f"after {duration(time.monotonic() - each.began)}"
        if state.status == "finished":
            self.seconds.append(time.monotonic() - each.began)
            outcome = outcome_of(Point(each.path.name, each.config, {}), each.path)
            score = last_score(SCORES[self.plan.score])(outcome)
            if score is None:
                none = {"evaluation": "no evaluation had time for all its games"}.get(self.plan.score, "no game ended")
                why = f"it ended without a score, as {none}"
                self._tell(each.trial, "FAIL", why=why)
                self._say(each.trial, f"failed {took}: {why}")
            else:
                self._tell(each.trial, "COMPLETE", score)
                self._say(each.trial, f"{score:.4g} {took}; {self._best()}{self._time_left()}")
        elif each.pruned:
            self._tell(each.trial, "PRUNED")
            self._say(each.trial, f"stopped early {took}, at {each.part:.0%}: below the median of the others")
        elif state.status == "failed":
            self._tell(each.trial, "FAIL", why=state.why)
            self._say(each.trial, f"failed {took}: {state.why}")
        else:
            self._interrupted_again(number, each, took)

    def _interrupted_again(self, number: int, each: Running, took: str) -> None:
        """Leaves the trial to be continued; after ATTEMPTS early ends in this call, it has failed."""
        self.attempts[number] = self.attempts.get(number, 0) + 1
        if self.attempts[number] < ATTEMPTS:
            self.left += 1
            self._say(each.trial, f"interrupted {took}")
            return
        why = f"its process ended early {ATTEMPTS} times; {each.path / rundir.LOG} may say why"
        self._tell(each.trial, "FAIL", why=why)
        self._say(each.trial, f"failed {took}: {why}")

    def _tell(self, trial: optuna.Trial, state: str, value: float | None = None, why: str = "") -> None:
        from optuna.trial import TrialState

        if why:
            trial.set_user_attr(WHY, why)
        self.study.tell(trial, value, state=TrialState[state])

    def _best(self) -> str:
        best = self.study.best_trial
        return f"best {best.value:.4g} (trial {best.number})"

    def _time_left(self) -> str:
        trials = self.study.get_trials(deepcopy=False)
        left = self.plan.trials - sum(trial.state.is_finished() for trial in trials)
        seconds = left / len(self.slots) * sum(self.seconds) / len(self.seconds)
        return f"; about {duration(seconds)} left" if left else ""

    def _text(self, trial: optuna.Trial) -> str:
        return ", ".join(f"{name} {f'{v:.4g}' if isinstance(v, float) else v}" for name, v in trial.params.items())

    def _say(self, trial: optuna.Trial, text: str) -> None:
        line = printable(f"[{trial.number + 1}/{self.plan.trials}] trial {trial.number} {text}")
        print(line, flush=True)


def shares(at_once: int, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """The cores of each of the trials that run at once.

    Raises:
        UsageError: there are fewer cores than trials.
    """
    if at_once > len(cores):
        here = counted(len(cores), "core")
        raise UsageError(f"--at-once {at_once}: this machine has {here}; use at most one trial per core")
    each = len(cores) // at_once
    return [tuple(cores[i * each : (i + 1) * each]) for i in range(at_once)]
