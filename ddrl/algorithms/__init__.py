"""The algorithms: one module each, registered here; plugins register theirs. Importing this imports no TensorFlow.

Read `record` first, which says what is known of an algorithm, then `ba3c`. Other packages must not ask which algorithm
a run has; of them only `ops`, `config`, and `networks` may be imported here.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

from ddrl import checks, plugins
from ddrl.algorithms.record import Algorithm, Exploration, Name, Preset
from ddrl.checks import did_you_mean
from ddrl.config import AlgorithmConfig, EnvironmentConfig, TrainConfig
from ddrl.errors import UsageError, called
from ddrl.networks.network import LOG_DEVIATION, Network, constant
from ddrl.types import ActionSpace, Continuous, Discrete, Machine, MultiDiscrete

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Exploration",
    "Name",
    "algorithm_named",
    "algorithm_of",
    "check_action_space",
    "names",
    "network_for",
    "preset",
    "preset_names",
    "printed_name",
]  # fmt: skip

MODULES = (
    "ba3c",
    "a2c",
    "ppo",
    "impala",
    "dqn",
    "dpg",
    "sac",
)  # fmt: skip
ALGORITHMS: Mapping[str, Algorithm] = plugins.algorithms.values
"""By the name of their settings."""

ACTIONS: dict[type, str] = {Discrete: "discrete", MultiDiscrete: "multi-discrete", Continuous: "continuous"}
GAMES = {"smoke": "ddrl/Catch-v0", "classic-control": "CartPole-v1", "mujoco": "HalfCheetah-v5"}
"""Of presets that are for other games than Atari's, where none is named."""
OF_CONTEXT = {"key", "target"}
"""Fields of LossContext that a loss may ask for."""
ARGUMENTS_OF_LOSS = ("network", "parameters", "batch", "settings", "context")
OF_TRAIN = {"algorithm", "preset", "resume", "resume_or_start", "plugin", "config", "print_config", "help", "help_all"}
"""Options of `ddrl train` that belong to no group of settings."""
VALUES = {int, float, str}
"""Types of settings, and of what a setting may be a list of."""


def names() -> dict[str, Name]:
    """What `ddrl train` takes: every name of every algorithm, an algorithm with its schedule and exchange."""
    return {name: known for algorithm in ALGORITHMS.values() for name, known in algorithm.names.items()}


def algorithm_of(settings: AlgorithmConfig) -> Algorithm:
    """The algorithm of these settings."""
    return ALGORITHMS[settings.name]


def algorithm_named(name: str) -> Algorithm:
    """The algorithm behind a name that `ddrl train` takes: a2c of a3c and hts-a2c.

    Raises:
        UsageError: there is none of that name.
    """
    for algorithm in ALGORITHMS.values():
        if name in algorithm.names:
            return algorithm
    meant, has = did_you_mean(name, names()), "give the --plugin that has it"
    meant = f"{meant} Or {has}" if meant else f"; choose one of {', '.join(names())}, or {has}"
    raise UsageError(f"{name:.80}: there is no such algorithm{meant}", name)


def printed_name(title: str) -> str:
    """A name of the command line as the papers write it."""
    known = names().get(title)
    return known.printed if known else title.upper()


def preset(name: str, game: str | None, machine: Machine, algorithm: str = "ba3c") -> TrainConfig:
    """The settings of a preset.

    Args:
        name: of the preset.
        game: to learn (None: the preset's own).
        machine: where it runs.
        algorithm: by its name for `ddrl train`.

    Raises:
        UsageError: for a preset or an algorithm that is not there, or that do not go together.
    """
    known = algorithm_named(algorithm).names[algorithm]
    if name not in (presets := preset_names()):
        meant = did_you_mean(name, presets) or f"; choose one of {', '.join(presets)}"
        raise UsageError(f"--preset {name:.80}: there is none of that name{meant}")
    if name not in known.presets:
        having = [title for title, each in names().items() if name in each.presets]
        raise UsageError(
            f"--preset {name} is one of {', '.join(having)}, not of {algorithm}: choose {', '.join(known.presets)}"
        )
    own = known.game or GAMES.get(name, EnvironmentConfig.game)
    return _given(known.presets[name], game or own, machine, algorithm, name)


def _given(make: Preset, game: str, machine: Machine, algorithm: str, name: str) -> TrainConfig:
    """The settings that a preset's function gives.

    Raises:
        UsageError: it fails, or gives no settings of its algorithm, in whose place another one would be trained.
    """
    where, settings = f"--preset {name} of {algorithm}", algorithm_named(algorithm).settings
    with called(f"{where} fails", "; fix the plugin"):
        config: Any = make(game, machine)
    if not isinstance(config, TrainConfig):
        raise UsageError(f"{where} gave {config!r:.80}: have it return a ddrl.config.TrainConfig")
    if not isinstance(config.algorithm, settings):
        raise UsageError(
            f"{where} has settings of {config.algorithm.name}: give its TrainConfig `algorithm={settings.__name__}()`"
        )
    kind: type = type(config.algorithm)
    hints = checks.hints(kind)
    for field in dataclasses.fields(settings):
        hint, value = hints[field.name], getattr(config.algorithm, field.name)
        if not _is_of_type(hint, value):
            raise UsageError(f"{where} has {field.name}={value!r:.80}, which is no {_shown(hint)}; fix the plugin")
    return config


def preset_names() -> list[str]:
    """The names of all presets."""
    return list(dict.fromkeys(name for known in names().values() for name in known.presets))


def network_for(config: TrainConfig, shape: tuple[int, ...], dtype: Any, space: ActionSpace) -> Network:
    """The network of a run.

    Args:
        config: of the run.
        shape, dtype: of one observation.
        space: of the actions.

    Raises:
        UsageError: the algorithm takes no such actions, or the network no such observations.
    """
    check_action_space(config, space)
    algorithm = algorithm_of(config.algorithm)
    network = algorithm.network(config.network, config.algorithm, shape, dtype, space)
    network.add_scalars(algorithm.learned(config.algorithm, space))
    deviation = config.network.initial_log_deviation  # 0: the network's own, which in the system's networks is 0
    if deviation and LOG_DEVIATION in network.initializers:
        network.initializers[LOG_DEVIATION] = constant(deviation)
    observations, rewards = config.network.normalize_observations, config.algorithm.normalize_rewards
    if observations or rewards:
        network.normalize(shape, dtype, observations, rewards)
    return network


def check_action_space(config: TrainConfig, space: ActionSpace) -> None:
    """Refuses a game whose actions the algorithm does not take.

    Raises:
        UsageError: with the algorithms that do.
    """
    settings, game = config.algorithm, config.environment.game
    unbounded = isinstance(space, Continuous) and not all(map(math.isfinite, space.low + space.high))
    if isinstance(space, settings.takes) and not (unbounded and settings.bounded):
        return
    others = ", ".join(
        name
        for name, other in ALGORITHMS.items()
        if isinstance(space, other.settings.takes) and not (unbounded and other.settings.bounded)
    )
    if isinstance(space, settings.takes):
        why = f"{settings.name} takes actions within bounds, and {game} has some without"
        raise UsageError(f"{why}: train one of {others}")
    kinds = " or ".join(ACTIONS[kind] for kind in settings.takes)
    if isinstance(space, Discrete):
        actions = f"{space.count} discrete ones"
    elif isinstance(space, MultiDiscrete):
        actions = f"discrete ones of {len(space.counts)} components"
    else:
        actions = f"{len(space.low)} continuous {'one' if len(space.low) == 1 else 'ones'}"
    raise UsageError(f"{settings.name} takes {kinds} actions, and {game} has {actions}: train one of {others}")


def _check(name: str, algorithm: Any) -> None:
    """Refuses to register what is no algorithm, or has a name or an option of another one."""
    if not isinstance(algorithm, Algorithm):
        raise UsageError(f"register_algorithm takes a ddrl.algorithms.Algorithm, not {algorithm!r:.80}")
    where = f"algorithm {name}"
    if not (dataclasses.is_dataclass(algorithm.settings) and issubclass(algorithm.settings, AlgorithmConfig)):
        raise UsageError(
            f"{where}: its settings {algorithm.settings!r:.80} are no dataclass that extends AlgorithmConfig"
        )
    _check_record(where, algorithm)
    if name not in algorithm.names:
        raise UsageError(f"{where} is no name of its own on the command line: give `names` one with its presets")
    for title, known in algorithm.names.items():
        other = next((one for one in ALGORITHMS.values() if title in one.names), None)
        if other is not None and other.name != name:  # its own name may be registered anew, as `Registry.add` says
            taken = plugins.algorithms.origin(other.name)
            raise UsageError(f"{where}: its name {title} is one of algorithm {other.name}, which {taken} registered")
        if "default" not in known.presets:
            raise UsageError(f"{where}: its name {title} has no preset `default`, which is taken where none is named")
    if strange := set(algorithm.context) - OF_CONTEXT:
        raise UsageError(f"{where}: its context names {min(strange)}: there are {' and '.join(sorted(OF_CONTEXT))}")
    _check_types(where, algorithm.settings)
    options = {field.name for field in dataclasses.fields(algorithm.settings)}
    for group in dataclasses.fields(TrainConfig):
        others: Any = group.default
        both = set() if group.name == "algorithm" else options & {field.name for field in dataclasses.fields(others)}
        if both:
            raise UsageError(f"{where}: its setting {min(both)} is one of {group.name} already; choose another name")
    if both := options & OF_TRAIN:
        option = checks.flag(min(both))
        raise UsageError(f"{where}: its setting {min(both)} would be {option} of `ddrl train`; choose another name")


def _check_record(where: str, algorithm: Algorithm) -> None:
    """Refuses names, a loss, or a context of other types, which nothing would notice before the ranks start."""
    names, loss = algorithm.names, algorithm.loss
    if not isinstance(names, Mapping) or not all(
        isinstance(known, Name) and isinstance(known.presets, Mapping) for known in names.values()
    ):
        example = "{'mine': Name('Mine', {'default': preset})}"
        raise UsageError(f"{where}: its names are {names!r:.80}: give a dict, as in {example}")
    try:
        inspect.signature(loss).bind(*ARGUMENTS_OF_LOSS)
    except TypeError as error:
        takes = f"takes {inspect.signature(loss)}" if callable(loss) else f"is {loss!r:.80}"
        raise UsageError(f"{where}: its loss {takes}: give a function of ({', '.join(ARGUMENTS_OF_LOSS)})") from error
    except ValueError:  # a function of C, whose arguments are not known
        pass
    context: Any = algorithm.context
    if isinstance(context, str) or not isinstance(context, Collection):
        raise UsageError(f"{where}: its context is {context!r:.80}: give a set, as in {{'target'}}")


def _check_types(where: str, settings: type) -> None:
    """Refuses settings that are no fields, and those of types that no option and no config.json can have."""
    fields = {field.name for field in dataclasses.fields(settings)}
    for name, hint in checks.hints(settings).items():
        if name not in fields:
            if typing.get_origin(hint) is not ClassVar and hint not in (ClassVar, dataclasses.KW_ONLY):
                raise UsageError(
                    f"{where}: its setting {name} is no field: decorate {settings.__name__} with "
                    "@dataclasses.dataclass(frozen=True)"
                )
        elif not _is_type_of_setting(hint):
            raise UsageError(
                f"{where}: its setting {name} is of type {_shown(hint):.80}: use bool, a Literal of texts, or X, "
                "X | None, or tuple[X, ...], where X is int, float, or str"
            )


def _is_type_of_setting(hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return all(isinstance(choice, str) for choice in arguments)
    if origin is tuple:
        return len(arguments) == 2 and arguments[0] in VALUES and arguments[1] is Ellipsis
    if origin in (typing.Union, types.UnionType):
        return len(arguments) == 2 and set(arguments) - VALUES == {type(None)}
    return hint is bool or hint in VALUES


def _shown(hint: Any) -> str:
    """A type as in the source."""
    return str(hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else hint)


def _is_of_type(hint: Any, value: Any) -> bool:
    """Whether a setting of this type may have this value. Those of a Literal are checked by the settings themselves."""
    if typing.get_origin(hint) is Literal:
        return True
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is_of_type(arguments[0], item) for item in value)
    kinds = arguments or (hint,)
    if isinstance(value, bool):  # which Python takes for a number
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else kinds)


plugins.algorithms.check = _check
for _module in MODULES:
    plugins.register_algorithm(importlib.import_module(f"ddrl.algorithms.{_module}").ALGORITHM)
