"""Named settings. A preset is a function of the game and of the machine to a TrainConfig."""

from __future__ import annotations

from ddrl.config import EnvironmentConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.presets import apex, dpg, q_learning, rollouts
from ddrl.presets.apex import APEX
from ddrl.presets.ba3c import PRESETS
from ddrl.presets.common import Machine
from ddrl.presets.q_learning import Q_LEARNING
from ddrl.presets.rollouts import ROLLOUTS
from ddrl.presets.stooke import STOOKE

NAMES = (
    "ba3c",
    *ROLLOUTS,
    *Q_LEARNING,
    "dpg",
    *APEX,
)  # what `ddrl train` takes: an algorithm with its schedule and exchange
PRESET_NAMES = (*PRESETS, "stooke")
DEFAULT_GAMES = {"smoke": "ddrl/Catch-v0"}


def family(algorithm: str) -> str:
    """The loss behind a name that `ddrl train` takes: a2c of a3c and hts-a2c."""
    if algorithm in Q_LEARNING:
        return "dqn"
    if algorithm in APEX:
        return algorithm.removeprefix("apex-")
    return {"a3c": "a2c", "appo": "ppo"}.get(algorithm, algorithm.removeprefix("hts-"))


def preset(name: str, game: str | None, machine: Machine, algorithm: str = "ba3c") -> TrainConfig:
    """The settings of a preset for a game (None: the preset's own) and an algorithm, by its name for `ddrl train`.

    Raises:
        UsageError: for a preset or an algorithm that is not there, or that do not go together.
    """
    if name not in PRESET_NAMES:
        raise UsageError(f"--preset {name:.80}: there is none of that name; choose one of {', '.join(PRESET_NAMES)}")
    if algorithm not in NAMES:
        raise UsageError(f"{algorithm:.80}: there is no such algorithm; choose one of {', '.join(NAMES)}")
    own = dpg.GAME if family(algorithm) == "dpg" else DEFAULT_GAMES.get(name, EnvironmentConfig.game)
    game = game or own
    if name == "stooke":
        if algorithm not in STOOKE:
            raise UsageError(
                f"--preset stooke has no {algorithm}: choose default, laptop or smoke, or {', '.join(STOOKE)}"
            )
        return STOOKE[algorithm](game, machine)
    if algorithm == "ba3c":
        return PRESETS[name](game, machine)
    if name not in ("default", "laptop", "smoke"):
        raise UsageError(f"--preset {name} is one of ba3c, not of {algorithm}: choose default, laptop or smoke")
    if algorithm in APEX:
        return apex.preset(algorithm, name, game, machine)
    if algorithm == "dpg":
        return dpg.preset(name, game)
    kind = q_learning if algorithm in Q_LEARNING else rollouts
    if name == "default":
        return (Q_LEARNING | ROLLOUTS)[algorithm](game, machine)
    if name == "laptop":
        return kind.laptop(algorithm, game, machine)
    return kind.smoke(algorithm, game, machine)
