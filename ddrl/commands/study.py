"""`ddrl study NAME`: the studies, their options, and what can be done with them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import shlex
import typing
from collections.abc import Sequence
from pathlib import Path

import tyro

from ddrl.checks import did_you_mean, flag
from ddrl.docstrings import paragraphs
from ddrl.errors import UsageError
from ddrl.init_from import source_of
from ddrl.options import command_line, early_options
from ddrl.options.help_page import Entry, Section, page
from ddrl.options.train_options import warn
from ddrl.placement.resources import this_machine
from ddrl.slurm.submission import require_sbatch
from ddrl.studies import plan as plans
from ddrl.studies.data import pack, unpack
from ddrl.studies.extension import extended
from ddrl.studies.html import sentence
from ddrl.studies.point_checks import check_environments, check_heard, unread_by_all
from ddrl.studies.points import Point
from ddrl.studies.settings import StudySettings, from_json, to_json
from ddrl.terminal import printable

if typing.TYPE_CHECKING:
    from ddrl.studies.study import Study

PAPERS = {
    "ba3c.scaling": ("scaling",),
    "ba3c.epsilon": ("epsilon",),
    "ba3c.communication": ("communication",),
    "ba3c.collapse": ("synchronous-vs-asynchronous", "learning-rate"),
    "ba3c.games": ("games",),
    "stooke.sampling": ("sampling",),
    "stooke.simulators": ("simulators",),
    "stooke.speed": ("speed",),
    "stooke.q_learning": ("batch-size", "secondary-learner", "norms"),
    "fast_dqn": ("suite", "ablation"),
    "hts": ("hts",),
    "apex.actors": ("actors",),
    "apex.replay": ("replay",),
}
"""Module of ddrl.studies.papers -> its studies."""
STUDIES = {name: f"ddrl.studies.papers.{paper}" for paper, names in PAPERS.items() for name in names}
STUDIES |= {name: f"ddrl.studies.{name}" for name in ("race", "variants", "simulate")}
HELP = """
    Repeat an experiment of a paper with one command: many runs, one after another or as a Slurm array, and a report of
    those that have finished (report.html, which needs no network), with a table (table.md), raw data (results.json,
    curves.csv, runs.csv), and a figure (figure.png, figure.pdf).
"""
WAYS = (
    ("NAME --quick", "Tiny sizes, a few minutes in all: does it work here?"),
    ("NAME --dir DIR --list", "Print the points and their status."),
    ("NAME --dir DIR", "Run what has not finished. Ctrl-C stops it; the same command continues."),
    ("NAME --dir DIR --repeats N", "Extend it to N runs of each point: run those that are missing."),
    ("NAME --dir DIR --point P", "Run only one point, by its name or number."),
    ("NAME --dir DIR --submit", "Run them as one Slurm array, a task for each point, and report at the end."),
    ("NAME --dir DIR --collect", "Report the finished points, while others still run."),
    ("NAME --dir DIR --pack D", "Write the measurements in small files, for a repository or a paper."),
    ("NAME --from-data D --dir DIR", "Write report, table, and figure again, from these files alone."),
)
CLOSING = "`ddrl study NAME --help` explains the options. DIR keeps them, so that later calls need only --dir."
ABOUT = "A study that has begun continues with the settings in its directory; of these, only --repeats can be raised."


@dataclasses.dataclass(frozen=True)
class Actions:
    """What to do."""

    dir: str = ""
    """Directory of the study (default: studies/NAME, or studies/NAME-quick). A study that is there continues."""
    list: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the points and their status, and run nothing."""
    collect: tyro.conf.FlagCreatePairsOff[bool] = False
    """Report the finished points, and run nothing."""
    submit: tyro.conf.FlagCreatePairsOff[bool] = False
    """Submit all points that have not finished as one Slurm array, a task for each, and a job that reports when they
    have ended."""
    pack: str = ""
    """Write the measurements of the points that have ended into this directory, in small files for a repository."""
    from_data: str = ""
    """Make the study from what --pack has written, and report it; run nothing."""
    point: str = ""
    """Run only this point, by its name or number in --list, and report nothing."""
    sbatch_options: str = ""
    """More options of sbatch for --submit, in one word: --sbatch-options="--partition=cpu --time=60"."""
    site: str = ""
    """Site file for --submit (default: $DDRL_SITE, slurm/site.conf of a clone, or ~/.config/ddrl/site.conf)."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """With --submit: print the scripts of the jobs, and submit nothing."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A plugin for all points of a new study, or the new name or path of one of a begun study that has moved. May be
    given several times."""

    def __post_init__(self) -> None:
        asked = [name for name in ("list", "collect", "submit", "pack", "from_data", "point") if getattr(self, name)]
        if len(asked) > 1:
            raise UsageError(f"{flag(asked[0])} with {flag(asked[1])}: give one of the two")
        if self.dry_run and not self.submit:
            raise UsageError("--dry-run goes with --submit: give both, or use --list, which runs nothing")
        for name in ("sbatch_options", "site"):
            if getattr(self, name) and not self.submit:
                raise UsageError(f"{flag(name)} goes with --submit: give both")

    @property
    def runs(self) -> bool:
        """Whether points are run here."""
        return not (self.list or self.submit or self.collect or self.pack or self.from_data)

    @property
    def starts(self) -> bool:
        """Whether points are run here or submitted."""
        return self.runs or (self.submit and not self.dry_run)

    @property
    def alone(self) -> bool:
        """Whether this call runs or submits all points, which no other call may do meanwhile, since both would take the
        same ones. A call with --point, such as a task of an array, may run beside others."""
        return self.starts and not self.point


def main(argv: Sequence[str]) -> int:
    """Runs one study; returns the exit status."""
    if argv and argv[0] in command_line.HELP:
        studies = Section("studies", [Entry(name, sentence(study_of(name).about)) for name in STUDIES])
        ways = Section("what to do", [Entry(*way) for way in WAYS])
        print(page("ddrl study NAME [--dir DIR] [OPTIONS]", paragraphs(HELP), [studies, ways], [CLOSING]), end="")
        return 0
    if not argv:
        raise UsageError(f"study: name one of {', '.join(STUDIES)}")
    if argv[0] not in STUDIES:
        meant = did_you_mean(argv[0], STUDIES) or f"; use one of {', '.join(STUDIES)}"
        raise UsageError(f"study {argv[0]}: there is no study of that name{meant}")
    study = study_of(argv[0])
    actions, settings, begun = parse(study, argv[1:])
    line = shlex.join(["ddrl", "study", *argv])
    plan = planned(study, actions, settings, line) if begun is None else extended(study, begun, settings, line)
    writes = plan is not begun and not (actions.list or actions.dry_run)
    if writes and actions.submit:
        require_sbatch()
    needs = needs_of(plan, actions, settings, begun is None) if actions.starts else {}
    with plans.held(plan.directory) if actions.alone else contextlib.nullcontext():
        if writes:
            plan = begin(study, plan, settings, line, actions.alone)
            plan = plan if begun is None else with_moved(plan, actions.plugin)
        plans.keep_local(plan.directory, needs)
        return act(study, plan, settings, actions, line)


def needs_of(plan: plans.Plan, actions: Actions, settings: StudySettings, new: bool) -> dict[str, str]:
    """The settings of the machine that the points of a new study need, or those that this call runs or submits.

    Raises:
        UsageError: this machine lacks what a point needs, or --point names no point.
    """
    chosen = [plan.find(actions.point)] if actions.point else plan.points
    left = [point for point in chosen if plan.state(point).status != "finished"]
    return settings.needs(plan.points, plan.points if new else left)


def planned(study: Study, actions: Actions, settings: StudySettings, line: str) -> plans.Plan:
    """The plan of a new study, of which nothing is written yet.

    Args:
        line: the command line.

    Raises:
        UsageError: --collect or --pack is given, although no study has begun there, or the settings are refused.
    """
    directory = directory_of(study, actions.dir, settings.quick)
    if wanted := [name for name in ("collect", "pack") if getattr(actions, name)]:
        raise UsageError(f"{flag(wanted[0])}: {directory} holds no study that has begun; name one with --dir")
    points = with_plugins(study.points(settings, this_machine()), actions.plugin)
    check_heard(settings, [point.config for point in points], this_machine())
    points = with_sources_fixed(points)
    plan = plans.Plan(directory, study.name, to_json(settings), points, line)
    if actions.point:
        plan.find(actions.point)  # an unknown name is refused before there is a directory
    if actions.runs:
        check_environments(point.config for point in points)
    if not (actions.list or actions.dry_run):
        plans.check_names(plan)  # before its directory is made and held
    for vain in unread_by_all(settings, [point.config for point in points]):
        warn(f"warning: {vain}")
    return plan


def with_sources_fixed(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points of a new study with --init-from replaced by the checkpoint's file that it stands for now.

    Points that name the same run get the same file.

    Raises:
        UsageError: there is no such run or checkpoint.
    """
    named = dict.fromkeys(point.config.run.init_from for point in points)
    files = {name: str(source_of(name).path) for name in named if name}
    return tuple(
        point._replace(config=point.config.changed(run={"init_from": files[name]})) if name else point
        for point in points
        for name in [point.config.run.init_from]
    )


def with_plugins(points: Sequence[Point], plugins: Sequence[str]) -> tuple[Point, ...]:
    """The points of a new study, changed so that their runs import these plugins, too.

    Args:
        plugins: loaded plugins, as they are recorded.
    """
    return tuple(_importing(point, early_options.joined(point.config.run.plugins, plugins)) for point in points)


def with_moved(plan: plans.Plan, plugins: Sequence[str]) -> plans.Plan:
    """The plan of a study that has begun, changed so that its points import their plugins from where these are now.

    Args:
        plugins: loaded plugins that have moved, as they are recorded.

    Raises:
        UsageError: no point has one of them.
    """
    known = list(dict.fromkeys(plugin for point in plan.points for plugin in point.config.run.plugins))
    begun = f"the study in {plan.directory} was begun without it, and its points keep that"
    places = dict(zip(known, early_options.moved(known, plugins, begun)))
    moved = [tuple(places[plugin] for plugin in point.config.run.plugins) for point in plan.points]
    return plan._replace(points=tuple(_importing(point, of) for point, of in zip(plan.points, moved)))


def _importing(point: Point, plugins: tuple[str, ...]) -> Point:
    if plugins == point.config.run.plugins:
        return point
    return point._replace(config=point.config.changed(run={"plugins": plugins}))


def begin(study: Study, plan: plans.Plan, settings: StudySettings, line: str, alone: bool) -> plans.Plan:
    """Writes a new study into its directory, or extends the one that is there; returns what is there then.

    The directory is read again, since another call may have begun or extended the study meanwhile.

    Args:
        study: the declaration of the study.
        plan: the plan of the new study, or of the one that has begun with its new points.
        settings: those of the plan.
        line: the command line.
        alone: whether this call holds the directory. If not, it does so while it extends the study.

    Raises:
        UsageError: the study that is there has other settings or more repeats, another call holds the directory, or it
            cannot be written; or another call has just begun a study there that cannot be seen yet.
    """
    written = plans.load(plan.directory, plan.study)
    if written is None:
        try:
            plans.begin(plan)
            return plan
        except FileExistsError:
            written = plans.load(plan.directory, plan.study)
    if written is None:
        raise UsageError(f"--dir {plan.directory}: another call has just begun a study there; try again")
    plans.check_same(written, plan.settings)
    more = extended(study, written, settings, line)
    if more is written:
        return written
    if not alone:
        with plans.held(plan.directory):
            return begin(study, plan, settings, line, True)
    plans.write(more)
    return more


def study_of(name: str) -> Study:
    """The declaration of the study of this name, from its module."""
    from ddrl.studies.study import Study

    declared = [value for value in vars(importlib.import_module(STUDIES[name])).values() if isinstance(value, Study)]
    return next(study for study in declared if study.name == name)


def parse(study: Study, argv: Sequence[str]) -> tuple[Actions, StudySettings, plans.Plan | None]:
    """What to do, the settings, and the plan if the study was begun before, which then gives the defaults.

    Packed data become a study that was begun before, once the options are known to be right.

    Raises:
        UsageError: settings or plugins are refused, or are not those of the plan; or the packed data are refused.
    """
    prog = f"ddrl study {study.name}"
    plugins, argv = early_options.take_plugins(argv, prog)
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    peek.add_argument("--dir", nargs="?", default="")
    peek.add_argument("--quick", action="store_true")
    peek.add_argument("--from-data", nargs="?", default="")
    first, _ = peek.parse_known_args(list(argv))
    directory = directory_of(study, first.dir or "", first.quick)
    place, option = (Path(first.from_data), "--from-data") if first.from_data else (directory, "--dir")
    plan = plans.load(place, study.name, option, trusted=not first.from_data)
    defaults = study.quick if first.quick else study.defaults
    if plan is not None:
        local = plans.local_settings(directory, study.defaults.of_machine)
        # The plan of somebody else or of an earlier version may hold such settings, too: which program is run.
        own = {name: value for name, value in plan.settings.items() if name not in study.defaults.of_machine}
        defaults = from_json(type(study.defaults), own | local)
    kind = dataclasses.make_dataclass(
        "Arguments", [("settings", type(defaults)), ("actions", Actions)], namespace={"__doc__": ABOUT}
    )
    arguments = command_line.read(kind, argv, prog, kind(defaults, Actions()), (tyro.conf.OmitArgPrefixes,))
    if plan is not None:
        plans.check_same(plan._replace(settings=to_json(defaults)), to_json(arguments.settings))
        check_extends(plan, defaults, arguments.settings, arguments.actions)
        plan = with_moved(plan, plugins)._replace(directory=directory)
    if first.from_data:
        unpack(Path(first.from_data), directory)
    return dataclasses.replace(arguments.actions, plugin=tuple(plugins)), arguments.settings, plan


def check_extends(plan: plans.Plan, begun: StudySettings, settings: StudySettings, actions: Actions) -> None:
    """Raises UsageError for more repeats than the begun study has, with an action that only reads its points."""
    reads = [name for name in ("collect", "pack", "from_data") if getattr(actions, name)]
    if reads and settings.repeats > begun.repeats:
        raise UsageError(
            f"--repeats {settings.repeats}: the study in {plan.directory} has {begun.repeats} of each point, and "
            f"{flag(reads[0])} adds none; leave the option out, or give it to a call that runs or submits points"
        )


def directory_of(study: Study, named: str, quick: bool) -> Path:
    """The directory of a study: the named one, or one with the study's own name.

    Args:
        named: what the user gives as --dir, or empty.
        quick: whether --quick is given.
    """
    return Path(named or f"studies/{study.name}{'-quick' if quick else ''}")


def act(study: Study, plan: plans.Plan, settings: StudySettings, actions: Actions, command: str) -> int:
    """Does what was asked for with a study that has begun; returns the exit status.

    Args:
        study: the declaration of the study.
        plan: the plan of the study.
        settings: those of the machine are used; the plan has the others.
        actions: what to do.
        command: the command as it was typed.
    """
    from ddrl.studies.collect import collect
    from ddrl.studies.engine import run_points

    if actions.list:
        for number, point in enumerate(plan.points):
            state = plan.state(point)
            line = f"{number:3d}  {point.name:50s} {state.status}{': ' + state.why if state.why else ''}"
            print(printable(line).replace("\n", " "))
        return 0
    if actions.submit:
        from ddrl.studies.slurm import Asked, submit_study

        submit_study(plan, Asked(actions.sbatch_options, actions.site, actions.dry_run, command), actions.plugin)
        return 0
    if actions.pack:
        pack(plan, Path(actions.pack))
        return 0
    if actions.point:
        return run_points(plan, study.runner(settings), [plan.find(actions.point)])
    reports = actions.collect or bool(actions.from_data)
    status = 0 if reports else run_points(plan, study.runner(settings))
    if reports or any(plan.state(point).status == "finished" for point in plan.points):
        collect(plan, study)
    return status
