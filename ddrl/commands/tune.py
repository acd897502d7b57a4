"""`ddrl tune ALGORITHM`: a search for good settings; see ddrl.tuning."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path

import tyro

from ddrl import checks
from ddrl.errors import UsageError
from ddrl.init_from import with_source_fixed
from ddrl.options import command_line, early_options, train_options
from ddrl.options.game_settings import check_game
from ddrl.options.unread import unread
from ddrl.placement.resources import this_machine
from ddrl.slurm.submission import require_sbatch
from ddrl.tuning import plan as plans
from ddrl.tuning.journal import optuna_module
from ddrl.tuning.plan import Plan
from ddrl.tuning.space import FORM, Score, check
from ddrl.wording import counted

TRIALS = 20


@dataclasses.dataclass(frozen=True)
class TuneArguments:
    """Search for good settings with Optuna. Each trial is a run of `ddrl train` in DIR/trials, and a report says which
    settings matter and which are best. The same command continues a search that has begun. All other options are those
    of `ddrl train`, such as --preset, --game, and --minutes, and apply to every trial.

      ddrl tune ba3c --preset smoke --minutes 1 --space "adam-epsilon=log(1e-9,1e-2)" "batch-size=choice(64,256)"
    """

    space: tuple[str, ...] = ()
    """Settings to search, each as "NAME=log(LOW,HIGH)", "NAME=uniform(LOW,HIGH)", or "NAME=choice(A,B,...)"."""
    trials: int = TRIALS
    """Number of trials, including those of earlier calls."""
    prune: bool = False
    """Stop a trial early when its score is below the median of the others after the same part of their budget."""
    score: Score = "online"
    """Score to maximize. online: the mean of the last 100 training games; evaluation: the mean of the last evaluation's
    games, which take time of their own. Trials have an evaluator only for the latter."""
    at_once: int = 1
    """Trials at once, each with its share of the cores. In a Slurm array, this is the number of tasks at once, unless
    it is 1."""
    dir: str = ""
    """Directory of the search (default: tuning/ALGORITHM)."""
    collect: tyro.conf.FlagCreatePairsOff[bool] = False
    """Report the trials that have ended, and run nothing."""
    submit: tyro.conf.FlagCreatePairsOff[bool] = False
    """Submit the remaining trials as one Slurm array."""
    task: int | None = None
    """Run one trial, as the task of this number in the array does."""
    sbatch_options: str = ""
    """More options of sbatch for --submit, in one word: --sbatch-options="--partition=cpu --time=60"."""
    site: str = ""
    """Site file for --submit (default: $DDRL_SITE, slurm/site.conf of a clone, or ~/.config/ddrl/site.conf)."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """With --submit: print the script of the jobs, and submit nothing."""

    def __post_init__(self) -> None:
        checks.between(self, 1, 1_000_000, "trials")
        checks.between(self, 1, 1_000_000, "at_once")
        asked = [
            checks.flag(name) for name in ("collect", "submit", "task") if getattr(self, name) not in (False, None)
        ]
        if len(asked) > 1:
            raise UsageError(f"{' and '.join(asked)}: give one of them")
        for name in ("dry_run", "sbatch_options", "site"):
            if getattr(self, name) and not self.submit:
                raise UsageError(f"{checks.flag(name)} goes with --submit: give both")


def main(argv: Sequence[str]) -> int:
    """Runs `ddrl tune`; returns the exit status."""
    if not argv:
        raise UsageError("tune: name an algorithm, and with --space the settings to search (ddrl tune --help)")
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    peek.add_argument("--dir", nargs="?", default="")
    named, rest = peek.parse_known_args(list(argv))
    algorithm = rest[0] if rest and not rest[0].startswith("-") else ""
    directory = Path(named.dir or f"tuning/{algorithm or 'search'}")
    plugins, _ = early_options.take_plugins(argv, "ddrl tune")  # first, as those of the plan may have moved
    before = plans.load(directory)
    default = TuneArguments()
    if before is not None:
        default = TuneArguments(before.texts, before.trials, before.prune, before.score)  # type: ignore[arg-type]
    arguments, train = command_line.read_known(TuneArguments, argv, "ddrl tune", default, others=True)
    command = shlex.join(["ddrl", "tune", *argv])
    if before is None:
        if arguments.collect or arguments.task is not None:
            raise UsageError(f"--dir {directory}: no search has begun there; name one, or start it without --collect")
        if named.dir and not (algorithm or arguments.space):
            raise UsageError(f"--dir {directory}: no search has begun there; name one, or begin it with --space")
        plan = begin(directory, arguments, train, command)
    else:
        plan = go_on(before, arguments, early_options.split_plugins(train, "ddrl tune")[1], plugins)
    return act(plan, arguments, command)


def begin(directory: Path, arguments: TuneArguments, train: Sequence[str], command: str) -> Plan:
    """Begins a search: checks its settings and writes its plan, which a dry run only makes.

    Raises:
        UsageError: the settings are refused, another call has just begun a search in the directory, or it cannot be
            written.
    """
    from ddrl.tuning.engine import shares

    optuna_module()
    at_once = 1 if arguments.submit else arguments.at_once  # tasks of an array do not share this machine
    here = this_machine()
    shares(at_once, range(here.cores))  # refused before there is a plan, which would keep the settings for such shares
    share = here._replace(cores=here.cores // at_once, memory_bytes=here.memory_bytes / at_once)
    own = [option.name for option in command_line.options_of(TuneArguments)]
    asked = train_options.parse(train, share, "ddrl tune", own)
    _check_asked(arguments, asked)
    name = f"{asked.algorithm}-{uuid.uuid4().hex[:12]}"
    config = with_source_fixed(asked.config)  # now, as all trials are to begin with the same parameters
    plan = Plan(
        directory, name, asked.algorithm, asked.preset, tuple(train), config,
        arguments.space, arguments.score, arguments.trials, arguments.prune, command,
    )  # fmt: skip
    if "evaluator" in asked.chosen and config.evaluation.evaluator != plan.of_trials.evaluation.evaluator:
        why = f"trials with --score {plan.score} have {'one' if plan.score == 'evaluation' else 'none'}; leave it out"
        checks.refuse(config.evaluation, "evaluator", why)
    tried = check(plan.of_trials, plan.space)
    actions = check_game(plan.of_trials, share)
    for line in unread(tried[0], asked.chosen, actions):
        if all(line in unread(each, asked.chosen, actions) for each in tried):
            train_options.warn(f"warning: {line}")
    if arguments.submit and not arguments.dry_run:
        require_sbatch()
    if arguments.dry_run:
        return plan
    try:
        plans.begin(plan)
    except FileExistsError as error:  # with this plan in its place, nobody could read the other's journal
        taken = "another `ddrl tune` has just begun a search there; give the same command again to join it"
        raise UsageError(f"--dir {directory}: {taken}") from error
    return plan


def _check_asked(arguments: TuneArguments, asked: train_options.TrainArguments) -> None:
    """Raises UsageError if there is nothing to search, or if trials could not have these options of `ddrl train`."""
    if not arguments.space:
        raise UsageError(f"--space: say what to search; {FORM}")
    run = asked.config.run
    if asked.resume or run.run_dir:
        raise UsageError("--resume and --run-dir are for a single run; a search has its trials in --dir")
    if not (run.minutes or run.agent_steps or run.max_updates):
        raise UsageError("--minutes 0: a trial would never end; give --minutes, --agent-steps, or --max-updates")
    if asked.config.evaluation.target_score is not None and arguments.score != "evaluation":
        why = "only an evaluator can tell when it is reached, and trials have one only with --score evaluation"
        checks.refuse(asked.config.evaluation, "target_score", f"{why}; use that, or --target-score None")


def go_on(plan: Plan, arguments: TuneArguments, train: Sequence[str], plugins: Sequence[str]) -> Plan:
    """The plan of a search that continues. The number of trials, whether they are pruned, and the places of plugins may
    change.

    Args:
        train: options of `ddrl train`, without --plugin.
        plugins: loaded plugins, as they are recorded.

    Raises:
        UsageError: the options are those of another search.
    """
    before = early_options.split_plugins(plan.train, "ddrl tune")[1]
    kept = {
        "--space": (plan.texts, arguments.space),
        "--score": ((plan.score,), (arguments.score,)),
        "options of ddrl train": (tuple(before), tuple(train or before)),
    }
    for name, (was, now) in kept.items():
        if was != now and now != (plan.algorithm,):
            raise UsageError(
                f"{name} {shlex.join(now)}: the search in {plan.directory} was begun with {shlex.join(was)}, and its "
                "trials keep that; leave this out, or choose another --dir"
            )
    if arguments.trials < plan.trials:
        raise UsageError(
            f"--trials {arguments.trials}: the search in {plan.directory} has {plan.trials}; leave this out, or give "
            "more (Ctrl-C stops a search, and --collect reports the trials that have ended)"
        )
    begun = f"the search in {plan.directory} was begun without it, and its trials keep that"
    places = early_options.moved(plan.base.run.plugins, plugins, begun)
    base = plan.base.changed(run={"plugins": places})
    changed = dataclasses.replace(plan, base=base, trials=arguments.trials, prune=arguments.prune)
    if changed != plan and arguments.task is None and not (arguments.dry_run or arguments.collect):
        plans.write(changed)
    return changed


def act(plan: Plan, arguments: TuneArguments, command: str) -> int:
    """Does what was asked for with a search that has begun; returns the exit status.

    Args:
        plan: the plan of the search.
        arguments: what to do.
        command: the command as it was typed.
    """
    from ddrl.tuning.report import collect

    if arguments.collect:
        collect(plan)
        return 0
    if arguments.submit:
        return submit(plan, arguments, command)
    from ddrl.tuning.engine import Engine

    engine = Engine(plan, arguments.at_once, most=None if arguments.task is None else 1)
    ended = engine.run()
    trials = engine.study.get_trials(deepcopy=False)
    all_ended = len(trials) >= plan.trials and all(trial.state.is_finished() for trial in trials)
    if all_ended or (arguments.task is None and any(trial.value is not None for trial in trials)):
        collect(plan)
    return 0 if ended else 130


def submit(plan: Plan, arguments: TuneArguments, command: str) -> int:
    """Submits an array with a task for each trial that is left; returns the exit status.

    Args:
        plan: the plan of the search.
        arguments: what to do.
        command: the command as it was typed.
    """
    from ddrl.studies.points import Point
    from ddrl.studies.slurm import Asked, submit_array
    from ddrl.tuning.journal import JOURNAL, open_study

    begun = (plan.directory / JOURNAL).exists() or not arguments.dry_run
    trials = open_study(plan).get_trials(deepcopy=False) if begun else []
    left = plan.trials - sum(trial.state.is_finished() for trial in trials)
    if left <= 0:
        raise UsageError(
            f"--submit: {plan.directory} has no trial left to run (--trials {plan.trials}); give more --trials"
        )
    array = f"0-{left - 1}" + (f"%{arguments.at_once}" if arguments.at_once > 1 else "")
    task = ["tune", "--dir", str(plan.directory.absolute()), "--task"]
    asked = Asked(arguments.sbatch_options, arguments.site, arguments.dry_run, command)
    point = Point("trial", plan.of_trials, {})
    number = submit_array(f"tune-{plan.algorithm}", plan.directory, array, [point], task, asked)
    if not asked.dry_run:
        trials_left = counted(left, "trial")
        print(f"job {number}: an array with {trials_left} of {plan.directory}; the last one writes the report")
    return 0
