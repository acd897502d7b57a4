"""What `ddrl train ALGORITHM --help` shows: what this algorithm can use, and what its presets make of it.

--help has the options that most runs need, on one or two screens; --help-all has every option by its group, and at the
end those that need another algorithm or game. Values in brackets are those of the chosen preset, game or run.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ddrl import algorithms
from ddrl.command_line import Option, options_of, shown
from ddrl.config import TrainConfig
from ddrl.config.algorithm import FromDataPoints, FromReplay, FromRollouts, FromUnrolls
from ddrl.docstrings import first_sentence, paragraphs
from ddrl.errors import UsageError
from ddrl.help_page import Entry, Section, page
from ddrl.types import Discrete, Machine

ALL = "--help-all"
ASKED = ("-h", "--help", ALL)
COMMON = {
    "what to learn": ("game", "preset", "network", "config", "plugin"),
    "how long, and where it is kept": (
        "minutes", "agent-steps", "target-score", "seed", "run-dir", "resume", "checkpoint-every-minutes",
    ),
    "processes": (
        "workers", "parameter-servers", "exchange", "updates", "actors", "replay-shards", "simulators", "schedule",
    ),
    "optimizer": ("optimizer", "learning-rate", "learning-rate-schedule", "batch-size", "clip-global-norm"),
    "replay": ("replay-capacity", "replay-minimum", "priority-exponent"),
    "evaluation": ("eval-games", "eval-every-updates", "video"),
}  # fmt: skip
"""The options of --help, by what they are about; those of the algorithm alone come behind."""
TITLES = {
    "": "the command",
    "environment": "environment",
    "network": "network",
    "sampling": "acting",
    "replay": "replay",
    "apex": "Ape-X",
    "optimizer": "optimizer",
    "exchange": "processes and exchange",
    "evaluation": "evaluation",
    "run": "the run",
}
PRESETS = {
    "laptop": "A smaller network and settings for all cores of one machine.",
    "smoke": "Catch in seconds: does everything work here?",
    "stooke": "Stooke and Abbeel 2018.",
}
"""What is said of presets whose functions have no docstring."""
TRIAL = "smoke"  # whose values, made to end in seconds, are no advice


class Need(NamedTuple):
    """Options that not every run can use.

    Attributes:
        names: of the options; none: all of the group.
        group: of the settings.
        of: what takes them, in words.
        met: settings -> whether they do.
    """

    group: str
    names: tuple[str, ...]
    of: str
    met: Callable[[TrainConfig], bool]


def _data(*kinds: type) -> Callable[[TrainConfig], bool]:
    return lambda config: isinstance(config.algorithm.learns_from, kinds)


def _apex(config: TrainConfig) -> bool:
    return config.apex.actors > 0


def _no_apex(config: TrainConfig) -> bool:
    return not _apex(config)


NEEDS = (
    Need("replay", (), "an algorithm with a replay (dqn, rainbow, sac, ...)", lambda config: config.has_replay),
    Need("apex", (), "Ape-X (apex-dqn, apex-dpg)", _apex),
    Need("sampling", ("rollout_length",), "an algorithm with rollouts (a2c, ppo)", _data(FromRollouts)),
    Need("sampling", ("refresh_every_steps",), "an algorithm with rollouts (a2c, ppo)", _data(FromRollouts)),
    Need("sampling", ("predictors",), "an algorithm with rollouts or unrolls", _data(FromRollouts, FromUnrolls)),
    Need("sampling", ("predict_batch",), "an algorithm without a replay",
         _data(FromDataPoints, FromRollouts, FromUnrolls)),
    Need("network", ("hidden_layers",), "an algorithm that takes any network", lambda c: not c.algorithm.dense_alone),
    Need("network", ("policy_layers", "critic_layers"), "dpg or sac", lambda config: config.algorithm.dense_alone),
    Need("evaluation", ("eval_epsilon",), "discrete actions", lambda config: Discrete in config.algorithm.takes),
    Need("environment", ("football_view", "football_players", "football_checkpoints"), "--game football/...",
         lambda config: config.environment.game.startswith("football/")),
    Need("exchange", ("chief", "updates"), "workers that act", _no_apex),
    Need("network", ("normalize_observations",), "workers that act", _no_apex),
    Need("algorithm", ("normalize_rewards", "steps_per_update", "target_period", "target_updates"),
         "workers that act", _no_apex),
    Need("optimizer", ("learning_rate_agent_steps",), "workers that act", _no_apex),
    Need("replay", ("importance_agent_steps",), "workers that act", _no_apex),
)  # fmt: skip
SCHEDULES: Mapping[type, tuple[str, ...]] = {
    FromDataPoints: ("asynchronous", "synchronized"),
    FromRollouts: ("synchronized", "double-buffered"),
    FromUnrolls: ("asynchronous",),
    FromReplay: ("standard", "concurrent"),
}
"""Kind of data -> the schedules that an algorithm can have without actors of Ape-X."""


def text(named: str | None, start: Any, machine: Machine, whole: bool) -> str:
    """The page.

    Args:
        named: the algorithm, if one is.
        start: TrainArguments, which the command line would change.
        machine: where it is read, for the other presets.
        whole: every option.
    """
    options = list(options_of(type(start), start))
    config: TrainConfig = start.config
    describe = _Describer(start, {} if start.resume else _presets(start, machine), whole)
    unmet = {_key(option): need for option in options if (need := _unmet(option, config))}
    usable = [option for option in options if _key(option) not in unmet and not option.positional]
    if whole:
        sections = [*_groups(usable, describe, start.algorithm), _rest(options, unmet)]
    else:
        own = [option for option in usable if option.group == "algorithm"] if named else []
        sections = [*_common(usable, describe), _own(own, describe, start.algorithm)]
        sections[1:1] = [] if start.resume else [_preset_section(start.algorithm)]
        sections = sections if named else [_algorithm_section(), *sections]
    return page(f"ddrl train {start.algorithm if named else 'ALGORITHM'} [OPTIONS]", _about(named, start), sections,
                _closing(named, whole))  # fmt: skip


def choices(option: Option, config: TrainConfig) -> Sequence[str]:
    """What an option with a list of choices can have, given the algorithm."""
    hint = option.hint
    every = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    if option.name != "schedule":
        return every
    return ("asynchronous",) if _apex(config) else SCHEDULES[type(config.algorithm.learns_from)]


@dataclasses.dataclass(frozen=True)
class _Describer:
    """Makes the lines of options.

    Attributes:
        start: TrainArguments with the values to show.
        presets: name -> settings of the other presets.
        whole: the whole text, else its first sentence.
    """

    start: Any
    presets: Mapping[str, TrainConfig]
    whole: bool

    def __call__(self, option: Option) -> Entry:
        said = option.text if self.whole else first_sentence(option.text)
        values = self._values(option)
        return Entry(self._head(option), f"{said} [{values}]" if values else said)

    def _head(self, option: Option) -> str:
        every = typing.get_args(option.hint) if typing.get_origin(option.hint) is typing.Literal else ()
        able = choices(option, self.start.config)
        return option.head if every == able else f"--{option.name} {{{','.join(able)}}}"

    def _values(self, option: Option) -> str:
        """Its value, and the other ones that presets have."""
        if not option.group:
            return ""
        own = option.value(self.start.config)
        others: dict[str, list[str]] = {}
        for name, config in self.presets.items():
            value = getattr(getattr(config, option.group), option.field, own)
            if value != own and option.name != "game":
                others.setdefault(_shown(value), []).append(name)
        named = [f"{' and '.join(names) if len(names) < 3 else ', '.join(names)}: {value}"
                 for value, names in others.items()]  # fmt: skip
        return "; ".join([_shown(own), *named] if named else filter(None, [shown(own)]))


def _shown(value: Any) -> str:
    return shown(value) or "none"


def _key(option: Option) -> tuple[str, str]:
    return option.group, option.field


def _unmet(option: Option, config: TrainConfig) -> Need | None:
    """What it needs and these settings lack."""
    for need in NEEDS:
        if need.group == option.group and option.field in (need.names or [option.field]) and not need.met(config):
            return need
    return None


def _presets(start: Any, machine: Machine) -> dict[str, TrainConfig]:
    """The other presets of the algorithm, for the same game."""
    found = {}
    for name in algorithms.names()[start.algorithm].presets:
        if name not in (start.preset, TRIAL):
            try:
                found[name] = algorithms.preset(name, start.config.environment.game, machine, start.algorithm)
            except UsageError:  # not for this game
                continue
    return found


def _about(named: str | None, start: Any) -> Iterator[str]:
    settings = algorithms.algorithm_named(start.algorithm).settings
    if named:
        yield from paragraphs(sys.modules[settings.__module__].__doc__)[:2]
    whose = f"the run in {start.resume}" if start.resume else f"--preset {start.preset}"
    if named:
        yield f"Values in brackets are those of {whose}, and of presets that have others."
    else:
        yield (f"Train an agent. Without an ALGORITHM it is {start.algorithm}, and the values in brackets are those of "
               f"its {whose.removeprefix('--')}.")  # fmt: skip


def _closing(named: str | None, whole: bool) -> Iterator[str]:
    if named is None:
        yield "`ddrl train ALGORITHM --help` shows what an algorithm can use, and what its presets make of it."
    if not whole:
        yield f"{ALL} shows every option. Numbers may be written as 1e6."


def _algorithm_section() -> Section:
    """Every name with what its default preset is."""
    return Section("algorithms", [Entry(name, _source(known, "default")) for name, known in algorithms.names().items()])


def _preset_section(algorithm: str) -> Section:
    known = algorithms.names()[algorithm]
    return Section("presets (--preset NAME)", [Entry(name, _source(known, name)) for name in known.presets])


def _source(known: algorithms.Name, preset: str) -> str:
    """The first sentence on a preset."""
    function: Any = known.presets[preset]
    said = paragraphs(inspect.getdoc(function))
    return first_sentence(said[0]) if said else PRESETS.get(preset, known.printed)


def _common(usable: Sequence[Option], describe: _Describer) -> list[Section]:
    by_name = {option.name: option for option in usable}
    return [
        Section(title, [describe(by_name[name]) for name in names if name in by_name])
        for title, names in COMMON.items()
    ]


def _own(own: Sequence[Option], describe: _Describer, algorithm: str) -> Section:
    return Section(algorithms.printed_name(algorithm), [describe(option) for option in own])


def _groups(usable: Collection[Option], describe: _Describer, algorithm: str) -> Iterator[Section]:
    for group in dict.fromkeys(option.group for option in usable):
        title = TITLES.get(group, algorithms.printed_name(algorithm))
        yield Section(title, [describe(option) for option in usable if option.group == group])


def _rest(options: Sequence[Option], unmet: Mapping[tuple[str, str], Need]) -> Section:
    """Names of options by what they need."""
    names: dict[str, list[str]] = {}
    for option in options:
        if need := unmet.get(_key(option)):
            names.setdefault(need.of, []).append(f"--{option.name}")
    return Section("options for other runs", [Entry(of, ", ".join(of_need)) for of, of_need in names.items()])
