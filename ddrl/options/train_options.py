"""The settings of a command line of `ddrl train`: from defaults, preset or earlier run, then flags."""

from __future__ import annotations

import dataclasses
import os
import sys
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from ddrl import algorithms, plugin_modules, rundir
from ddrl.checkpoint import list_checkpoints
from ddrl.checks import did_you_mean
from ddrl.config import RunConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.options import command_line, config_files, train_help
from ddrl.options.early_options import Parser, joined, take_plugins
from ddrl.options.game_settings import forget_trials, with_fitting_network
from ddrl.options.named_settings import algorithms_with, plain, typed, with_settings
from ddrl.options.other_libraries import meant_by
from ddrl.resumable import check_resumable, with_schedules_of
from ddrl.types import Machine

# Plugins add names, so the choices are made when a command line is read.
AlgorithmName = typing.Annotated[
    str, tyro.conf.arg(constructor_factory=lambda: tyro.extras.literal_type_from_choices(algorithms.names()))
]
PresetName = typing.Annotated[
    str, tyro.conf.arg(constructor_factory=lambda: tyro.extras.literal_type_from_choices(algorithms.preset_names()))
]
# The option is --plugin, which is read before all others. Settings import no tyro, so they cannot say so themselves.
RunConfig.__annotations__["plugins"] = tyro.conf.Suppress[tuple[str, ...]]
# tyro would parse the source of a class for the help of a group, although command_line.help_of writes ddrl's own.
NO_HELP = tyro.conf.arg(help="")
TrainConfig.__annotations__ |= {
    name: typing.Annotated[group, NO_HELP] for name, group in typing.get_type_hints(TrainConfig).items()
}


@dataclasses.dataclass(frozen=True)
class TrainArguments:
    """Train an agent. Defaults shown are those of the chosen --preset, --game or --resume."""

    algorithm: tyro.conf.Positional[AlgorithmName] = "ba3c"
    """Algorithm, with its own schedule and exchange: a3c and appo are a2c and ppo with asynchronous updates of a
    central store, hts-* act and learn at the same time; dqn, categorical-dqn, and rainbow learn from a replay, as dpg
    and sac do for continuous actions; apex-* have actors and the replay in ranks of their own."""
    preset: PresetName = "default"
    """Named settings, which the other options change. default has those of a paper (for ba3c, they are our own; see
    docs/differences.md)."""
    resume: str = ""
    """Directory of a run to continue. Its settings are the defaults, and --minutes counts from now."""
    resume_or_start: bool = False
    """Resume the run in --run-dir if it has begun, else start it. A run without a checkpoint starts again from its
    beginning. This is for jobs that are requeued: --minutes, too, is a budget of the whole run, and --preset and
    --init-from apply to the start only."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A module, a file that ends in .py, or an installed plugin. It registers algorithms, networks, and more, and all
    processes of the run import it (`ddrl plugins` lists the installed ones). May be given several times."""
    settings_file: typing.Annotated[str, tyro.conf.arg(name="config")] = ""
    """File of settings, .yaml or .toml, named as these options are. They override the preset, and options override
    them."""
    print_config: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print all settings as YAML for --config, and start nothing."""
    config: typing.Annotated[TrainConfig, NO_HELP] = dataclasses.field(kw_only=True)
    notes: tyro.conf.Suppress[tuple[str, ...]] = ()
    """What was chosen for the user, who is to know."""
    given: tyro.conf.Suppress[tuple[str, ...]] = dataclasses.field(default=(), compare=False)
    """Names of what was given on the command line, in its file, or from Python."""
    chosen: tyro.conf.Suppress[tuple[str, ...]] = dataclasses.field(default=(), compare=False)
    """Names in snake case of settings that were given, except those that a file leaves as they would be without it: a
    file of --print-config has them all."""

    @property
    def trains_more(self) -> bool:
        """Whether a resume trains further even if the run lacks only its final evaluation: it does if --minutes is
        given. With --resume-or-start it does not, since the command may be the one that started the run."""
        return "minutes" in self.given and bool(self.resume) and not self.resume_or_start


TRAIN = "ddrl train"
FOR_VECTORS = "classic-control"  # preset of some algorithms for games whose observations are a few numbers
MARKERS = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands)


def parse(
    argv: Sequence[str], machine: Machine, prog: str = TRAIN, own: Collection[str] = (), fit: bool = True
) -> TrainArguments:
    """The arguments of `ddrl train`. Help ends the process, as usual for command lines.

    Args:
        argv: the words after the command.
        machine: the machine on which they are read.
        prog: the command that has these options, such as `ddrl submit train`, which passes them on.
        own: names of the command's other options, one of which a mistyped name may mean.
        fit: whether to choose a network that fits the game, and try it for that.

    Raises:
        UsageError: the settings are refused.
    """
    new, argv = take_plugins(argv, prog)
    peek = Parser(prog=prog)
    for name in ("--preset", "--game", "--resume", "--run-dir", "--config"):
        peek.add_argument(name)
    peek.add_argument("--resume-or-start", action="store_true")
    first, rest = peek.parse_known_args(list(argv))
    file = config_files.read(first.config) if first.config else config_files.ConfigFile("", {})
    new = [*plugin_modules.load_named(file.texts("plugin")), *new]
    algorithm = _algorithm(rest) or _algorithm_of(file)
    start = _start(
        algorithm, machine, first.preset, first.game, first.resume, first.run_dir, first.resume_or_start, file, new
    )
    if asked := set(argv) & set(train_help.ASKED):
        print(train_help.text(algorithm, start, machine, train_help.ALL in asked), end="")
        raise SystemExit(0)
    arguments = _gone_on(start, _fitting(_read(argv, file, start, prog, own), fit))
    if arguments.print_config and prog != TRAIN:
        raise UsageError(f"--print-config: only `{TRAIN}` prints settings; leave it out of `{prog}`")
    return arguments


def without_file(argv: Sequence[str], arguments: TrainArguments) -> list[str]:
    """The words of a command line with the settings of its --config file in place of the file, which may change.

    Args:
        argv: the words, as `parse` takes them.
        arguments: what `parse` has made of them.
    """
    peek = Parser(prog=TRAIN)
    peek.add_argument("--config")
    found, words = peek.parse_known_args(list(argv))
    if not found.config:
        return list(argv)
    file, options = config_files.read(found.config), list(command_line.options_of(TrainArguments, arguments))
    given = command_line.given(words, options)
    words += file.words(options, given)
    words += [word for plugin in file.texts("plugin") for word in ("--plugin", plugin)]
    if "preset" in file.entries and "preset" not in given and not arguments.resume:  # a resumed run keeps its settings
        words += ["--preset", arguments.preset]
    return [arguments.algorithm, *words] if "algorithm" in file.entries and _algorithm(words) is None else words


def settings_of(
    algorithm: str | None,
    preset: str | None,
    machine: Machine,
    fit: bool = True,
    /,
    *,
    resume: str | os.PathLike[str] | None = None,
    resume_or_start: bool = False,
    plugin: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = (),
    config: str | os.PathLike[str] = "",
    **names: Any,
) -> TrainArguments:
    """The arguments of `ddrl train` from Python: as `parse`, with settings by their names in snake case.

    Args:
        algorithm: name of the algorithm (None: that of the run to resume, or else ba3c).
        preset: name of the preset (None: default).
        machine: the machine on which they are read.
        fit: whether to choose a network that fits the game, and try it for that.
        resume, resume_or_start: as in TrainArguments.
        plugin: one plugin, or several (None: none).
        config: file of settings, which override the preset and are overridden by `names`.
        names: settings, such as learning_rate=1e-3.

    Raises:
        UsageError: the settings are refused, with the message of the command line.
    """
    before: str | None = plain(resume, str)
    game, run_dir, path = names.get("game"), plain(names.get("run_dir"), str), plain(config, str)
    texts = {"algorithm": algorithm, "--game": game, "--run-dir": run_dir, "--preset": preset, "--resume": before,
             "--config": path}  # fmt: skip
    for name, text in texts.items():  # these are needed before the other settings are checked
        if text is not None and not isinstance(text, str):
            raise UsageError(f"{name} is {text!r:.80}, which is not a str")
    if "plugins" in names:  # the name in config.json
        raise UsageError("plugins: there is no such setting; did you mean plugin?")
    forget_trials()
    file = config_files.read(path) if path else config_files.ConfigFile("", {})
    new = [*plugin_modules.load_named(file.texts("plugin"), anew=True), *plugin_modules.load_named(plugin)]
    plugin_modules.refuse_changed(new)  # before a preset of the old file is made
    algorithm = algorithm or _algorithm_of(file)
    start = _start(algorithm, machine, preset, game, before, run_dir, resume_or_start, file, new)
    plugin_modules.refuse_changed(start.config.run.plugins)  # with those of a run that is gone on with
    # The file is read together with the names, as on a command line: alone, its settings may contradict the preset.
    arguments = _read(_words(start, names), file, start, TRAIN) if config else start
    settings = with_settings(arguments.config, names)
    if start.resume:
        check_resumable(start.config, settings)
    given, chosen = (*arguments.given, *names), (*arguments.chosen, *names)
    arguments = dataclasses.replace(
        arguments, config=settings, resume_or_start=resume_or_start, given=given, chosen=chosen
    )
    return _gone_on(start, _fitting(arguments, fit))


def _words(start: TrainArguments, names: Mapping[str, Any]) -> list[str]:
    """Settings by their names in snake case as words of a command line. Raises UsageError as `typed`."""
    values = {name.replace("_", "-"): value for name, (_, value) in typed(start.config, names).items()}
    known = [option for option in command_line.options_of(TrainArguments, start) if option.name in values]
    return [word for option in known for word in command_line.words_of(option, values[option.name])]


def _start(
    algorithm: str | None,
    machine: Machine,
    preset: str | None,
    game: str | None,
    resume: str | None,
    run_dir: str | None,
    resume_or_start: bool,
    file: config_files.ConfigFile,
    new: Sequence[str],
) -> TrainArguments:
    """The arguments that the other options change: those of a preset, or of the run to resume, with new plugins."""
    if resume is not None and preset is not None:
        raise UsageError("--preset with --resume: a resumed run keeps its settings; give one of the two")
    resume = _begun(run_dir or file.text("run-dir"), resume) if resume_or_start else resume
    name = preset or file.text("preset") or "default"
    if resume is not None:
        config = _resumed(resume)
        check_algorithm(algorithm, config, resume)
        algorithm = algorithm or (config.title if config.title in algorithms.names() else config.algorithm.name)
    else:
        algorithm = algorithm or "ba3c"
        try:
            config = algorithms.preset(name, game or file.text("game"), machine, algorithm)
        except UsageError as error:
            raise file.located(error, {"preset"} if preset else ()) from error
    config = config.changed(run={"plugins": joined(config.run.plugins, new)})
    return TrainArguments(algorithm, preset=name, resume=resume or "", config=config)


def _gone_on(start: TrainArguments, arguments: TrainArguments) -> TrainArguments:
    """The arguments. Those of a resumed run have schedules that go on where they were, and the --init-from with which
    it began.

    Raises:
        UsageError: a resume names another --init-from.
    """
    if not arguments.resume:
        return arguments
    config, began = arguments.config, start.config.run.init_from
    if config.run.init_from not in ("", began) and not arguments.resume_or_start:
        raise UsageError(
            f"--init-from {config.run.init_from}: a resumed run goes on with its own parameters; leave it out, or "
            "start a new run"
        )
    if list_checkpoints(arguments.resume):  # else the run begins again, with what is asked for now
        parts = [start.config]
        if arguments.resume_or_start:  # a job that is requeued repeats the length with which a schedule began
            parts += [config for _, config in rundir.earlier_configs(Path(arguments.resume))]
        config = with_schedules_of(parts, config).changed(run={"init_from": began})
    return dataclasses.replace(arguments, config=config)


def _fitting(arguments: TrainArguments, fit: bool) -> TrainArguments:
    """The arguments, with a network that fits the game if that is wanted and no network was given.

    Raises:
        UsageError: settings are to be printed, and the game, on which they depend, fails as it is tried.
    """
    if not fit or arguments.resume or "network" in arguments.given:
        return arguments
    try:
        config, note = with_fitting_network(arguments.config)
    except UsageError:
        if arguments.print_config:
            raise
        return arguments  # whoever needs the game asks for its trial, which is not repeated, and refuses
    if note and FOR_VECTORS in algorithms.names()[arguments.algorithm].presets:
        note += f"; or try --preset {FOR_VECTORS}"
    return dataclasses.replace(arguments, config=config, notes=(note,) if note else ())


def _read(
    argv: Sequence[str], file: config_files.ConfigFile, default: TrainArguments, prog: str, own: Collection[str] = ()
) -> TrainArguments:
    """The arguments of a command line and of its file, whose settings are overridden by those of the command line."""
    options = list(command_line.options_of(TrainArguments, default))
    given = command_line.given(argv, options)
    words = file.words(options, given)

    def whose(name: str) -> str:
        if of_others := algorithms_with(name):
            return f" for {default.algorithm}{of_others}"
        return meant_by(name, [*command_line.names_of(options), *own], "--")

    try:
        arguments = command_line.read(TrainArguments, [*argv, *words], prog, default, MARKERS, whose)
        if arguments.resume:
            check_resumable(default.config, arguments.config)
    except UsageError as error:
        raise file.located(error, given) from error
    settings = [option for option in options if option.group]
    changed = {each.name for each in settings if each.value(arguments.config) != each.value(default.config)}
    chosen = [each.field for each in settings if each.name in given | (changed & file.entries.keys())]
    return dataclasses.replace(arguments, given=tuple(sorted(given | set(file.entries))), chosen=tuple(chosen))


def _resumed(run: str) -> TrainConfig:
    """The settings of a run that is resumed."""
    loaded, is_sealed = rundir.read_config(Path(run) / rundir.CONFIG)
    if not is_sealed:
        warn(
            f"warning: {run}: its {rundir.CONFIG} has no checksum; an earlier version of ddrl or somebody else wrote it"
        )
    return loaded.changed(run={"run_dir": run})


def _algorithm_of(file: config_files.ConfigFile) -> str | None:
    name = file.text("algorithm")
    if name is not None and name not in algorithms.names():
        meant = did_you_mean(name, algorithms.names())
        raise UsageError(f"{file.place('algorithm')} {name:.80}: there is no such algorithm{meant}")
    return name


def _algorithm(words: Sequence[str]) -> str | None:
    """The algorithm that a command line names: a word of that name which is not the value of an option."""
    # options whose values may be names of algorithms, too
    values = ("--network", "--protocol", "--init-from", "--run-dir", "--resume", "--config")
    pairs = zip(["", *words], words)
    named = next((word for before, word in pairs if word in algorithms.names() and before not in values), None)
    if named is None and words and not words[0].startswith("-"):
        return algorithms.algorithm_named(words[0]).name  # which refuses it
    return named


def check_algorithm(named: str | None, config: TrainConfig, run: str) -> None:
    """Checks that a resumed run keeps its algorithm.

    Args:
        named: the algorithm on the command line (None: none is there).
        config: settings of the run.
        run: directory of the run, for the error.

    Raises:
        UsageError: the command line names another one.
    """
    if named is not None and algorithms.algorithm_named(named).name != config.algorithm.name:
        raise UsageError(
            f"{named}: the run in {run} is one of {config.title}; leave the algorithm out, or start a new run"
        )


def _begun(run_dir: str | None, resume: str | None) -> str | None:
    """The directory of the run that --resume-or-start resumes; None if no run has begun there."""
    if run_dir is None or resume is not None:
        raise UsageError("--resume-or-start needs --run-dir, without --resume")
    path = Path(run_dir)
    if not (path / rundir.CONFIG).exists():
        return None
    return None if rundir.read_json(path / rundir.CONFIG) is None and rundir.untrained(path) else run_dir


def warn(text: str) -> None:
    """Tells the user something in one line that does not end the program."""
    print(f"ddrl: {text}", file=sys.stderr)
