"""The page of `ddrl train ALGORITHM --help`: the options that this algorithm can use, with the values of its presets.

--help has the options that most runs need, on one or two screens; --help-all has every option by its group, and at the
end those that need another algorithm or game. Values in brackets are those of the chosen preset, game or run.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ddrl import algorithms
from ddrl.config import TrainConfig
from ddrl.config.algorithm import FromDataPoints, FromReplay, FromRollouts, FromUnrolls
from ddrl.docstrings import first_sentence, paragraphs
from ddrl.errors import UsageError
from ddrl.option_values import shown
from ddrl.options.command_line import Option, choices_word, options_of, told
from ddrl.options.help_page import USUAL, Entry, Section, page, terminal_width
from ddrl.types import Discrete, Machine

ALL = "--help-all"
ASKED = ("-h", "--help", ALL)
COMMON = {
    "what to learn": ("game", "network", "plugin", "config"),
    "the run": (
        "minutes", "agent-steps", "target-score", "final-evaluation-minutes", "seed", "run-dir", "resume", "video",
    ),
    "processes": ("workers", "parameter-servers", "exchange", "actors", "replay-shards", "simulators", "schedule"),
    "optimizer": ("optimizer", "learning-rate", "learning-rate-schedule", "batch-size", "clip-global-norm"),
    "replay": ("replay-capacity", "replay-minimum", "priority-exponent"),
}  # fmt: skip
"""The options of --help, by section. The algorithm's own options follow them."""
OF_ALGORITHM = ("optimizer", "replay")  # the last sections, which depend on the algorithm
NUMBERS = "Numbers may be written as 1e6."
CLOSING = (
    "`ddrl train ALGORITHM --help` shows what an algorithm can use, and what its presets make of it; "
    f"`ddrl train ALGORITHM --help-all` has every option. {NUMBERS}"
)
SELDOM = ("discount-start", "discount-start-share", "entropy-cost-start", "entropy-cost-start-share")
"""Options of algorithms that --help shows after the others, if there is room."""
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
    "classic-control": "CartPole, or another game of a few numbers and rewards about 1.",
    "stooke": "Stooke and Abbeel 2018.",
}
"""Descriptions of presets whose functions have no docstring."""
SOURCE_END = re.compile(r": ")  # where the docstring of a preset goes on with its settings
MOST_LINES = 80  # of --help, for an algorithm, where lines have at least 100 columns
TRIAL = "smoke"  # a preset whose values are no advice, since they are made to end in seconds


class Need(NamedTuple):
    """Options that not every run can use.

    Attributes:
        group: the settings group of the options.
        names: names of the options (none: all of the group).
        of: what can use them, in words.
        met: settings -> whether a run with them can use the options.
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
    Need("sampling", ("rollout_length", "refresh_every_steps"), "an algorithm with rollouts (a2c, ppo)",
         _data(FromRollouts)),
    Need("sampling", ("predictors",), "an algorithm with rollouts or unrolls", _data(FromRollouts, FromUnrolls)),
    Need("sampling", ("predict_batch",), "an algorithm without a replay",
         _data(FromDataPoints, FromRollouts, FromUnrolls)),
    Need("network", ("hidden_layers",), "an algorithm that takes any network", lambda c: not c.algorithm.dense_alone),
    Need("network", ("policy_layers", "critic_layers"), "dpg or sac", lambda config: config.algorithm.dense_alone),
    Need("network", ("initial_log_deviation",), "a Gaussian policy (a2c, ppo, impala)",
         lambda config: config.has_gaussian_policy),
    Need("evaluation", ("eval_actions",), "an algorithm without a replay",
         _data(FromDataPoints, FromRollouts, FromUnrolls)),
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
    """The whole page.

    Args:
        named: the algorithm that the command line names (None: none).
        start: the TrainArguments that the command line would change.
        machine: the machine on which it is read, for the values of other presets.
        whole: show every option.
    """
    options = list(options_of(type(start), start))
    config: TrainConfig = start.config
    describe = _Describer(start, {} if start.resume else _presets(start, machine), whole)
    unmet = {_key(option): need for option in options if (need := _unmet(option, config))}
    usable = [option for option in options if _key(option) not in unmet and not option.positional]
    usage = f"ddrl train {start.algorithm if named else 'ALGORITHM'} [OPTIONS]"
    if whole:
        return page(usage, _about(named, start), [*_groups(usable, describe, start.algorithm), _rest(options, unmet)])
    common = [describe.section(title, usable, names) for title, names in COMMON.items()]
    if not named:
        return page(usage, _about(named, start), [_algorithm_section(), *common[: -len(OF_ALGORITHM)]], [CLOSING])
    common[1:1] = [] if start.resume else [_preset_section(start.algorithm)]
    own = _own_options([option for option in usable if option.group == "algorithm"])
    for shown_ones in range(len(own), -1, -1):
        section = describe.section(algorithms.printed_name(start.algorithm), usable, own[:shown_ones])
        left = _listed(own[shown_ones:])
        more = [f"{ALL} shows {left}{' and ' if left else ''}all other options, too. {NUMBERS}"]
        made = page(usage, _about(named, start), [*common, section], more)
        if made.count("\n") <= MOST_LINES or terminal_width() < USUAL:
            break
    return made


def _own_options(options: Sequence[Option]) -> list[str]:
    """Names of an algorithm's options: first those that a plugin adds to settings of ddrl, last those seldom used."""
    base = next(kind for kind in options[0].kind.__mro__ if kind.__module__.startswith("ddrl."))
    known = {field.name for field in dataclasses.fields(base)}
    return [option.name for option in sorted(options, key=lambda each: (each.name in SELDOM, each.field in known))]


def choices(option: Option, config: TrainConfig) -> Sequence[str]:
    """The choices of an option that the algorithm can use."""
    if option.name != "schedule":
        return option.choices
    return ("asynchronous",) if _apex(config) else SCHEDULES[type(config.algorithm.learns_from)]


@dataclasses.dataclass(frozen=True)
class _Describer:
    """Makes the lines of options.

    Attributes:
        start: TrainArguments with the values to show.
        presets: name -> settings of the other presets.
        whole: show the whole text of an option, else its first sentence.
    """

    start: Any
    presets: Mapping[str, TrainConfig]
    whole: bool

    def __call__(self, option: Option) -> Entry:
        able = choices(option, self.start.config)
        said = _without(option.text, set(option.choices) - set(able)) if self.whole else first_sentence(option.text)
        value = option.value(self.start.config if option.group else self.start)
        head = option.head(value) if able == option.choices else f"--{option.name} {choices_word(able)}"
        return told(head, said, able, self._values(option))

    def section(self, title: str, usable: Sequence[Option], names: Sequence[str]) -> Section:
        """A section with those of the named options that can be used, in this order."""
        by_name = {option.name: option for option in usable}
        return Section(title, [self(by_name[name]) for name in names if name in by_name])

    def _values(self, option: Option) -> str:
        """The value of an option, and the different ones of other presets."""
        if not option.group:
            return ""
        own = option.value(self.start.config)
        others: dict[str, list[str]] = {}
        for name, config in self.presets.items():
            value = getattr(getattr(config, option.group), option.field, own)
            if value != own and option.name != "game":
                others.setdefault(_shown(value), []).append(name)
        named = [f"{', '.join(names)} {value}" for value, names in others.items()]
        return "; ".join([_shown(own), *named] if named else filter(None, [shown(own)]))


def _without(text: str, choices: Collection[str]) -> str:
    """A text without what it says about some choices, such as 'linear: to 0; ' after its first sentence."""
    first = first_sentence(text)
    said = text[len(first) :].strip().removesuffix(".").split("; ")
    kept = [part for part in said if part.partition(":")[0] not in choices]
    return f"{first} {'; '.join(kept)}." if choices else text


def _shown(value: Any) -> str:
    return shown(value) or "none"


def _key(option: Option) -> tuple[str, str]:
    return option.group, option.field


def _unmet(option: Option, config: TrainConfig) -> Need | None:
    """The need of an option that these settings do not meet; None if they meet all."""
    for need in NEEDS:
        if need.group == option.group and option.field in (need.names or [option.field]) and not need.met(config):
            return need
    return None


def _presets(start: Any, machine: Machine) -> dict[str, TrainConfig]:
    """Name -> settings of the other presets of the algorithm, for the same game."""
    found = {}
    for name in algorithms.names()[start.algorithm].presets:
        if name not in (start.preset, TRIAL):
            try:
                found[name] = algorithms.preset(name, start.config.environment.game, machine, start.algorithm)
            except UsageError:  # not for this game
                continue
    return found


def _about(named: str | None, start: Any) -> Iterator[str]:
    if named:
        yield " ".join(_is_said_of(algorithms.algorithm_named(start.algorithm)))
    whose = f"the run in {start.resume}" if start.resume else f"--preset {start.preset}"
    if named:
        yield f"Values in brackets are those of {whose}, and of presets that have others."
    else:
        yield (f"Train an agent. Without an ALGORITHM it is {start.algorithm}, and the values in brackets are those of "
               f"its {whose.removeprefix('--')}.")  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return "".join(f"--{name}, " for name in names).removesuffix(", ")


def _algorithm_section() -> Section:
    """A section with every name of an algorithm.

    A name that does not say what it is has the first paragraph about the algorithm.
    """
    return Section("algorithms", [
        Entry(name, known.about or _is_said_of(algorithm)[0])
        for algorithm in algorithms.ALGORITHMS.values() for name, known in algorithm.names.items()
    ])  # fmt: skip


def _preset_section(algorithm: str) -> Section:
    known = algorithms.names()[algorithm]
    return Section("presets (--preset NAME)", [Entry(name, _source(known, name)) for name in known.presets])


def _source(known: algorithms.Name, preset: str) -> str:
    """The source of a preset, from its docstring, without its settings."""
    said = SOURCE_END.split(_says(known.presets[preset]))[0].rstrip(".")
    return f"{said}." if said else PRESETS.get(preset, "")


def _says(function: Any) -> str:
    """The first sentence of a function's docstring."""
    return first_sentence(" ".join(paragraphs(inspect.getdoc(function))[:1]))


def _is_said_of(algorithm: algorithms.Algorithm) -> list[str]:
    """The first two paragraphs of the module that an algorithm is in; of its settings' class if the module says nothing
    or has several algorithms."""
    settings = algorithm.settings
    alone = [each.settings.__module__ for each in algorithms.ALGORITHMS.values()].count(settings.__module__) == 1
    said = paragraphs(getattr(sys.modules.get(settings.__module__), "__doc__", "")) if alone else []
    own = settings.__doc__ or ""
    if not said and not own.startswith(f"{settings.__name__}("):  # the signature, which `dataclass` gives in its place
        said = paragraphs(own)
    return (said or [""])[:2]


def _groups(usable: Collection[Option], describe: _Describer, algorithm: str) -> Iterator[Section]:
    for group in dict.fromkeys(option.group for option in usable):
        title = TITLES.get(group, algorithms.printed_name(algorithm))
        yield Section(title, [describe(option) for option in usable if option.group == group])


def _rest(options: Sequence[Option], unmet: Mapping[tuple[str, str], Need]) -> Section:
    """A section with the names of options that this run cannot use, by what they need."""
    names: dict[str, list[str]] = {}
    for option in options:
        if need := unmet.get(_key(option)):
            names.setdefault(need.of, []).append(f"--{option.name}")
    return Section("options for other runs", [Entry(of, ", ".join(of_need)) for of, of_need in names.items()])
