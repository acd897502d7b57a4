"""Warnings of what makes points hard to compare: other machines, versions, protocols, settings, or missing records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ddrl import rundir
from ddrl.launch.outcome import ended_well
from ddrl.reporting.machine import in_words
from ddrl.reporting.metrics import complete
from ddrl.studies.measures import evaluations
from ddrl.studies.points import Outcome
from ddrl.studies.provenance import machine_of, rules_text, stamps, versions_of

OWN_WAY = {
    "evaluation": ("final_evaluation_minutes",),
    "exchange": ("on_worker_loss", "on_server_loss"),
    "run": ("run_dir", "minutes", "plugins"),
}
"""Settings that may differ from the plan: where a run and its plugins are, how long it and its last evaluation may go
on, what it does when a rank dies."""
NAMED = 3  # points or settings that a warning names at most


def warnings(outcomes: Sequence[Outcome]) -> list[str]:
    """What makes points hard to compare, a line each."""
    said = [
        *_machines(outcomes), *_versions(outcomes), *_protocols(outcomes), *_unplanned(outcomes), *_empty(outcomes),
        *_cut_off(outcomes),
    ]  # fmt: skip
    return [f"careful: {line}" for line in said]


def _machines(outcomes: Sequence[Outcome]) -> list[str]:
    """Warns of points of different machines, on which speed and time to a score depend."""
    points: dict[str, list[str]] = {}
    for outcome in outcomes:
        if "processor" in (machine := machine_of(outcome.path)):
            points.setdefault(in_words(machine), []).append(outcome.point.name)
    return [f"points of different machines, whose times do not compare: {_which(points)}"] if len(points) > 1 else []


def _versions(outcomes: Sequence[Outcome]) -> list[str]:
    points: dict[str, dict[str, list[str]]] = {}
    for outcome in outcomes:
        peer = outcome.result.get("peer") or {}  # it has packages of its own
        theirs = {f"{name} of the peer": version for name, version in peer.items()}
        for name, version in (versions_of(machine_of(outcome.path)) | theirs).items():
            points.setdefault(name, {}).setdefault(str(version), []).append(outcome.point.name)
    return [f"points of different versions of {name}: {_which(of)}" for name, of in points.items() if len(of) > 1]


def _protocols(outcomes: Sequence[Outcome]) -> list[str]:
    """Warns of points whose planned environment is the same, but whose evaluations have different protocols."""
    groups: dict[Any, dict[str, list[str]]] = {}
    for outcome in outcomes:
        config = outcome.point.config
        rules = groups.setdefault((config.environment, config.evaluation), {})
        for stamp in stamps(outcome):
            rules.setdefault(json.dumps(stamp, sort_keys=True), []).append(outcome.point.name)
    lines = []
    for (environment, _), rules in groups.items():
        if len(rules) > 1:
            stamped = [json.loads(rule) for rule in rules]
            points = {rules_text(_differing(stamp, stamped)): names for stamp, names in zip(stamped, rules.values())}
            lines.append(f"points of different protocols in {environment.game}: {_which(points)}")
    return lines


def _differing(stamp: dict[str, Any], others: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The part of a stamp that identifies it: the name of the protocol, and what is not the same in all stamps."""
    same = {name for name, value in stamp.items() if all(other.get(name) == value for other in others)}
    return {name: value for name, value in stamp.items() if name == "protocol" or name not in same}


def _unplanned(outcomes: Sequence[Outcome]) -> list[str]:
    """Warns of runs with other settings than their point has in study.json, such as copies from another study."""
    lines = []
    for outcome in outcomes:
        run = rundir.read_json(outcome.path / rundir.CONFIG) or {}
        planned = json.loads(json.dumps(rundir.config_to_dict(outcome.point.config)))  # lists for tuples
        groups = {name: run[name] for name in planned if isinstance(run.get(name), dict)}
        unplanned = [
            f"{group} {name} {values[name]} (planned: {value})"
            for group, values in groups.items()
            for name, value in planned[group].items()
            if name not in OWN_WAY.get(group, ()) and values.get(name, value) != value
        ]
        if unplanned:
            lines.append(f"{outcome.point.name} ran with other settings than planned: {_some(unplanned)}")
    return lines


def _empty(outcomes: Sequence[Outcome]) -> list[str]:
    """Warns of runs that finished, but whose metrics are lost."""
    finished = [o for o in outcomes if ended_well(o.result) and (o.path / rundir.CONFIG).exists()]
    lost = [o.point.name for o in finished if not o.records]
    return [f"finished, but {rundir.METRICS} has no readable records: {_some(lost)}"] if lost else []


def _cut_off(outcomes: Sequence[Outcome]) -> list[str]:
    """Warns of runs whose last evaluation had no time for all games.

    An earlier evaluation then gives their last score. Without one they have none, and means and intervals leave them
    out.
    """
    played = [(one.point.name, [record for record in evaluations(one) if "games" in record]) for one in outcomes]
    older = [name for name, records in played if complete(records) and not complete(records[-1:])]
    none = [name for name, records in played if records and not complete(records)]
    why = "the last evaluation had no time for all games, so that an earlier one gives the last score"
    left_out = "no evaluation had time for all games, so that these runs have no last evaluation score"
    return [f"{text}: {_some(names)}" for text, names in ((why, older), (left_out, none)) if names]


def _which(points: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{kind} ({_some(names)})" for kind, names in points.items())


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
