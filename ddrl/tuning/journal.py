"""The Optuna study of a search: its journal is one file of JSON lines, which several processes may append to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl.errors import UsageError, read_as
from ddrl.files import append_regular, cut_half_line
from ddrl.run_lock import flock
from ddrl.tuning.plan import Plan
from ddrl.tuning.space import Dimension

if TYPE_CHECKING:
    import optuna

JOURNAL, CLAIMS = "journal.log", "claims"
WRITING = "journal"  # name of the lock that a process holds while it appends to the journal
WAIT_SECONDS = 600.0  # for a lock, which hundreds of processes may want at once, each for a moment
POLL_SECONDS = 0.05
WHY = "why"  # attribute of a failed trial
RANDOM_TRIALS = 8  # before the sampler begins to learn from them
TRIALS_BEFORE_PRUNING = 4
RUNGS = 20
"""Equal parts of a trial's budget. At the end of each, its score is compared with those of others."""
WARM_UP_RUNGS = 7  # a third of the budget, within which a trial that learns late looks hopeless


def optuna_module() -> Any:
    """Optuna, without its messages.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UsageError('`ddrl tune` needs Optuna: pip install "ddrl[tune]"') from error
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna


def open_study(plan: Plan) -> optuna.Study:
    """The Optuna study of this search, which is begun if there is none.

    Raises:
        UsageError: Optuna is not installed, or the journal cannot be read or is that of another study.
    """
    optuna = optuna_module()
    from optuna.storages.journal import JournalFileBackend

    path = plan.directory / JOURNAL
    append_regular(path).close()  # Optuna would follow a link of somebody else, and write there
    with read_as(str(path), "restore it from a copy, or choose another --dir"):
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=_journal_lock(plan)))
        names = [each.study_name for each in storage.get_all_studies()]
    if others := [name for name in names if name != plan.name]:
        raise UsageError(
            f"{path} is the journal of another search, {others[0]}, and {plan.directory} belongs to {plan.name}: "
            "restore its own from a copy, or choose another --dir"
        )
    pruner = optuna.pruners.MedianPruner(TRIALS_BEFORE_PRUNING, WARM_UP_RUNGS)
    return optuna.create_study(
        study_name=plan.name,
        storage=storage,
        direction="maximize",
        sampler=_sampler(plan.base.run.seed),
        pruner=pruner if plan.prune else optuna.pruners.NopPruner(),
        load_if_exists=True,
    )


def distributions(space: Sequence[Dimension]) -> dict[str, Any]:
    """The search space as Optuna's distributions, by name."""
    optuna = optuna_module()
    found: dict[str, Any] = {}
    for dimension in space:
        if dimension.kind == "choice":
            found[dimension.name] = optuna.distributions.CategoricalDistribution(dimension.texts)
            continue
        numbers = optuna.distributions
        kind = numbers.IntDistribution if dimension.whole else numbers.FloatDistribution
        found[dimension.name] = kind(*dimension.values(), log=dimension.kind == "log")
    return found


@contextlib.contextmanager
def locked(plan: Plan, name: str, wait: bool = False) -> Iterator[bool]:
    """Context manager that takes a lock of the search, such as that of a trial; yields whether it could be taken.

    On a file system without locks, only a lock whose name has never been taken can be.

    Args:
        wait: wait until the process that holds the lock releases it.

    Raises:
        UsageError: that takes longer than WAIT_SECONDS.
    """
    directory = plan.directory / CLAIMS
    directory.mkdir(parents=True, exist_ok=True)
    is_new = not (directory / name).exists()
    with append_regular(directory / name) as file:
        yield _had(file.fileno(), directory / name, is_new, WAIT_SECONDS if wait else 0.0)


def _had(descriptor: int, path: Path, is_new: bool, seconds: float) -> bool:
    """Takes the lock of a file within so many seconds (0: at once); returns whether it could be taken."""
    taken = flock(descriptor, seconds, POLL_SECONDS)
    if taken is False and seconds:
        raise UsageError(
            f"{path}: another process has held this lock for {seconds:g} s, and needs it for a moment only; end "
            "that process, and give this command again"
        )
    return is_new if taken is None else taken


def _journal_lock(plan: Plan) -> Any:
    """The lock under which Optuna appends to the journal.

    Optuna's own locks are files, which a killed process leaves behind. Its default one, a link to a relative path, is
    then waited for without end. The kernel releases this one when its process ends. On a file system without such
    locks, a lock of Optuna takes its place, which others may take from its holder after 30 s.
    """
    from optuna.storages.journal import JournalFileOpenLock

    class OfKernel(JournalFileOpenLock):
        def __init__(self) -> None:
            super().__init__(str(plan.directory / CLAIMS / WRITING))
            self.held = contextlib.ExitStack()

        def acquire(self) -> bool:
            with contextlib.ExitStack() as taken:
                if not taken.enter_context(locked(plan, WRITING, wait=True)):
                    super().acquire()
                    taken.callback(super().release)
                cut_half_line(plan.directory / JOURNAL)  # Optuna would append to it, and then read neither
                self.held = taken.pop_all()
            return True

        def release(self) -> None:
            self.held.close()

    return OfKernel()


def _sampler(seed: int) -> Any:
    """Optuna's tree-structured Parzen estimator, seeded for each trial by its number.

    So the draws of a trial depend on its number and on the trials before it, not on the process. Otherwise every
    process would begin with the same draws, and one that continues a search would repeat the first.
    """
    from optuna.samplers import BaseSampler, TPESampler

    class ByNumber(BaseSampler):
        def before_trial(self, study: Any, trial: Any) -> None:
            numbered = int(np.random.SeedSequence([seed, trial.number]).generate_state(1)[0])
            self.inner = TPESampler(n_startup_trials=RANDOM_TRIALS, seed=numbered)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            self.before_trial(study, trial)
            return self.inner.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self.inner.sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return self.inner.sample_independent(study, trial, param_name, param_distribution)

    return ByNumber()
