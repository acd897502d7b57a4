"""`ddrl.train`: `ddrl train` from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from cluster.job import Job, detect_job
from ddrl import plugin_modules, plugins, programs
from ddrl.api.run import Run
from ddrl.checkpoint import list_checkpoints
from ddrl.config import TrainConfig
from ddrl.errors import RunFailed, UsageError
from ddrl.options import train_options, wanted
from ddrl.placement.resources import this_machine
from ddrl.reporting.callbacks import Callback, check_callback
from ddrl.reporting.progress import plain_console


def train(
    algorithm: str | None = None,
    *,
    preset: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    resume_or_start: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback | str] | None = (),
    **settings: Any,
) -> Run:
    """Trains an agent, with the settings, defaults and refusals of `ddrl train`, and returns the run when it has ended.

    It starts the processes that `ddrl train` starts, one without MPI or several under mpirun, as the settings say, and
    waits for them: TensorFlow and MPI can be begun only once in a process, and a rank that fails must not take a
    notebook with it. So what they import must be importable by name (`--plugin`), and not be defined in the notebook:
    what the notebook or program has registered by itself is refused. Ctrl-C, or a notebook's 'interrupt', asks them to
    save and end, and then the run is returned as it is; another one kills them, and KeyboardInterrupt is raised.

    In a script that mpirun or srun started, every rank of the job calls this, as each runs `ddrl train`: the processes
    end with the run, and nothing behind the call is done.

    Args:
        algorithm: as `ddrl train --help` names them (None: that of the run to resume, or else ba3c).
        preset: named settings that the others change (None: default).
        resume: a run to go on with, or its directory.
        resume_or_start: go on with `run_dir` where a run has begun; begin it where none has. Minutes then count over
            all calls.
        progress: show how it goes: a panel on a terminal, plain lines elsewhere. False: nothing is printed.
        callbacks: objects, which are called in this process with each record as it is written (not in a job), and names
            that are registered, which the chief calls (None: none). One that returns False stops the run.
        settings: options of `ddrl train` in snake case: game="CartPole-v1", minutes=2, learning_rate=1e-3.

    Raises:
        UsageError: for settings that cannot be, in the line that the command prints.
        RunFailed: the run did not end well; what was saved can be gone on with.
        KeyboardInterrupt: it was killed.
    """
    plugin_modules.refuse_training()
    machine = this_machine()
    here, named = _objects_and_names(callbacks)
    settings |= {"callbacks": named} if named else {}
    settings |= {"resume": resume, "resume_or_start": resume_or_start}
    with _refusals():
        job = detect_job(os.environ)

        def ready() -> wanted.Wanted:
            with_game = job is None or job.rank == 0
            arguments = train_options.settings_of(algorithm, preset, machine, with_game, **settings)
            if job is None:  # a rank of a job is this program itself
                _refuse_own(arguments.config)
            tell = train_options.warn if progress else lambda text: None
            return wanted.ready(arguments, machine, with_game, tell)

        if job is not None:
            _in_job(ready, job, here)
        from ddrl.launch import local

        config, path, trains_more, minutes_of_run = ready()
        if path is not None:
            config = config.changed(run={"run_dir": str(path)})
        places, causes = list[Path](), list[str]()
        # A notebook's output takes itself for a terminal, and cannot draw a panel in place.
        terminal = None if sys.stdout is sys.__stdout__ else False
        console = plain_console(quiet=not progress, force_jupyter=False, force_terminal=terminal)
        status = local.train(
            config,
            path,
            machine,
            console,
            callbacks=here,
            trains_more=trains_more,
            minutes_of_run=minutes_of_run,
            begun=places.append,
            failed=causes.append,
        )
    return _ended(status, places[0], "".join(causes))


def _objects_and_names(callbacks: Sequence[Callback | str] | None) -> tuple[list[Callback], list[str]]:
    """The callbacks that are objects, and the names of registered ones. Raises UsageError for anything else."""
    alone = isinstance(callbacks, (str, Callback)) or not isinstance(callbacks, Iterable)
    if alone and callbacks is not None:  # one of them: a word is a sequence of letters, too
        raise UsageError(f"callbacks is {callbacks!r:.80}, which is not a list")
    callbacks = callbacks or ()
    here = [each for each in callbacks if not isinstance(each, str)]
    for each in here:
        if isinstance(each, type):
            raise UsageError(f"callbacks has the class {each.__name__}: give an object of it, {each.__name__}(...)")
        check_callback("callbacks", each)
    return here, [each for each in callbacks if isinstance(each, str)]


def _refuse_own(config: TrainConfig) -> None:
    """Refuses what this program or notebook has registered by itself: no process that it starts would find it.

    Raises:
        UsageError: with the remedy.
    """
    game, wrappers, run = config.environment.game, config.environment.wrappers, config.run
    used: tuple[tuple[plugins.Registry[Any], Sequence[str]], ...] = (
        (plugins.algorithms, [config.algorithm.name]),
        (plugins.networks, [config.network.network]),
        (plugins.environments, [game]),
        (plugins.wrappers, wrappers),
        (plugins.exchanges, [config.exchange.exchange]),
        (plugins.loggers, run.loggers),
        (plugins.callbacks, run.callbacks),
        (plugins.optimizers, [config.optimizer.optimizer]),
        (plugins.learning_rate_schedules, [config.optimizer.learning_rate_schedule]),
    )
    own = [
        f"{registry.kind} {name}"
        for registry, texts in used
        for name in (text.partition(":")[0] for text in texts)  # without its options
        if name in registry.of_module(plugins.MAIN)
    ]
    if not own and _is_own_class(game):
        own = [f"environment {game}"]
    if own:
        raise UsageError(
            f"{own[0]}: this program or notebook has registered it, and the processes of a run import plugins alone; "
            'put it into a file, and give plugin="FILE.py" (a script may name itself: plugin=__file__)'
        )


def _is_own_class(game: str) -> bool:
    """Whether a game is one that Gymnasium was told of here, with a class or function of this program or notebook."""
    import gymnasium

    entry = getattr(gymnasium.registry.get(game), "entry_point", None)
    return getattr(entry, "__module__", "") == plugins.MAIN or str(entry).startswith(f"{plugins.MAIN}:")


def _in_job(ready: Callable[[], wanted.Wanted], job: Job, callbacks: Sequence[Callback]) -> NoReturn:
    from ddrl.launch.job import train_in_job

    if callbacks:
        raise UsageError("callbacks: a job takes the names of registered ones, as its ranks share no objects")
    raise SystemExit(train_in_job(ready, job))


def _ended(status: int, run_dir: Path, why: str) -> Run:
    if status == 0:
        return Run(run_dir)
    from ddrl.launch.local import KILLED

    if status == KILLED:
        begun = f"resume={str(run_dir)!r}"
        again = begun if list_checkpoints(run_dir) else f"run_dir={str(run_dir)!r}, resume_or_start=True"
        raise KeyboardInterrupt(f"killed; resume with ddrl.train({again})")
    raise RunFailed(f"the run in {run_dir} failed: {why}", run_dir.absolute())


@contextmanager
def _refusals() -> Iterator[None]:
    """What the system refuses becomes a UsageError, with the line of the command."""
    try:
        yield
    except programs.SYSTEM_ERRORS as error:
        raise UsageError(programs.reason(error)) from error
