"""`ddrl study race`: algorithms here and in Stable-Baselines3, on one machine, until each reaches a score."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddrl import checks
from ddrl.bench.peer_zoo import ZOO, settings_of
from ddrl.bench.peers import check_python, how_to_install
from ddrl.config import TrainConfig
from ddrl.envs.game_names import atari_rom
from ddrl.errors import UsageError
from ddrl.reporting.texts import number
from ddrl.studies import across_games
from ddrl.studies.curves import SECONDS, STEPS, learning_panel, spread_text
from ddrl.studies.figures import Panel, on_one_scale
from ddrl.studies.findings import FEW, extremes, reached, sentences
from ddrl.studies.measures import EVALUATION, count, final, given_seconds, largest, last_score, mean, rate, values
from ddrl.studies.peer import PEER, run_peer
from ddrl.studies.points import Group, Outcome, Point, grouped, parted
from ddrl.studies.settings import TargetSettings, base_config
from ddrl.studies.statistics import TimeToScore
from ddrl.studies.study import Labels, Report, Study
from ddrl.studies.tables import Columns, table
from ddrl.studies.training import train_point
from ddrl.types import Machine
from ddrl.wording import counted

OURS, THEIRS = "ddrl", "SB3"
LINE_SECONDS = 5.0
MOST_SYSTEMS = 6  # in a panel, each of whose seeds may have a curve of its own
UNEVEN = 1.15  # ratio of the highest to the lowest rate of a system's runs from which the report names them
OURS_ALONE = ("game_options", "wrappers", "step_time_mean_ms")
"""Settings that make another game of a game, or a slower one, and that the peer's program does not have."""
AXES = {SECONDS: "time", STEPS: "agent steps"}
LAST = (final(EVALUATION), "last evaluation score")
NOTES = (
    f"{THEIRS}: Stable-Baselines3 with the settings of its zoo; its clock stands still during evaluations, ours goes "
    "on. On Atari it plays evaluation games by draws from its policy (DQN: with its last epsilon) in its zoo's "
    "wrappers, ours by the protocol below; both count raw scores of whole games. Without --agent-steps it "
    "ends at its zoo's number of them at the latest, and a DQN that was stopped goes on with an empty replay"
)


@dataclasses.dataclass(frozen=True)
class RaceSettings(TargetSettings):
    """Algorithms here and in Stable-Baselines3 (with the settings of its zoo) learn a game one after the other on this
    machine, until the mean of 50 evaluation games reaches --target-score or the time is over: score against minutes."""

    ours: tuple[str, ...] = ("ba3c", "ppo", "apex-dqn")
    """Algorithms of ddrl."""
    peers: tuple[str, ...] = ("a2c", "ppo", "dqn")
    """Algorithms of Stable-Baselines3: a2c, ppo, dqn."""
    peer_python: str = ""
    """Python of a virtual environment that has Stable-Baselines3; without it, only ours run. It is not one of the
    study's settings: a study that has begun uses the one given last for its directory, until another is given."""
    eval_every_minutes: float = 10.0
    """Training between two evaluations of the peer, which is evaluated at once when its training games reach the
    target."""
    peer_replay: int = 0
    """Largest number of transitions in the replay of the peer's DQN (0: its zoo's 100,000), 56 KB each on Atari."""
    cores: int = 0
    """Cores that a run may use (0: all)."""
    stop_at_target: bool = True
    """End a run when an evaluation reaches --target-score; off: go on to the end of the budget."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.above(self, 0.0, "eval_every_minutes")
        for name in self.peers if self.peer_python else ():
            for game in self.games:
                if name not in ZOO:
                    raise UsageError(f"--peers {name}: choose from {', '.join(ZOO)}")
                try:
                    settings_of(name, *peer_game(game))
                except KeyError:
                    raise UsageError(
                        f"--peers {name}: ddrl has no settings of the zoo for {game}; choose other --peers or --games"
                    ) from None

    @property
    def of_machine(self) -> dict[str, str]:
        """Where the peer's Python is. A link is not resolved: Python finds its virtual environment by the link's
        path."""
        return {"peer_python": self.peer_python and os.path.abspath(self.peer_python)}

    def needs(self, points: Sequence[Point], to_run: Sequence[Point]) -> dict[str, str]:
        """The peer's Python if one of `to_run` needs it, after a check that it is there; see `StudySettings.needs`."""
        if self.peer_python and not any(map(_is_peers, points)):
            raise UsageError(
                f"--peer-python {self.peer_python}: the study was begun without it, so none of its points needs it; "
                "leave the option out, or choose another --dir"
            )
        theirs = sum(map(_is_peers, to_run))
        if not theirs:
            return {}
        if not self.peer_python:
            left = f"{counted(theirs, 'point')} of {PEER} left to run"
            raise UsageError(f"--peer-python is missing, with {left}; {how_to_install(PEER)}")
        check_python(self.peer_python, PEER)
        return self.of_machine

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the points seed by seed, so that a study that is stopped after a seed has runs of all systems."""
        systems = [(OURS, name) for name in self.ours]
        systems += [(THEIRS, name) for name in self.peers] if self.peer_python else []
        for seed in self.seeds:
            for game in self.games:
                for library, algorithm in systems:
                    peer = {"rival": self._peer} if library == THEIRS else {}
                    yield {"game": game, "library": library, "algorithm": algorithm, "seed": seed, **peer}

    @property
    def _peer(self) -> dict[str, Any]:
        """What the runs of Stable-Baselines3 need beside settings of ddrl: the label `rival` in study.json."""
        names = ("eval_every_minutes", "peer_replay", "target_score", "stop_at_target")
        return {name: getattr(self, name) for name in names}

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        """The settings of a run of ddrl. For a peer's run, only game, evaluation and budget have a meaning."""
        algorithm = labels["algorithm"] if labels["library"] == OURS else "ppo"
        config = base_config(self, algorithm, labels["game"], machine)
        if self.peer_python:
            why = f"{PEER} plays the game without it; leave it out, or leave --peer-python out"
            checks.unused(config.environment, why, *OURS_ALONE)
        return config.changed(run=self.run, evaluation=self.evaluated(self.stop_at_target))

    def report(self, outcomes: Sequence[Outcome], failed: Sequence[Point] = ()) -> Report:
        """A table and panels for each game; the verdict compares the median times of each library's fastest system.

        Args:
            failed: points whose runs failed.
        """
        groups = grouped(outcomes, "game", "library", "algorithm")
        columns: Columns = {
            "system": name_of, "runs": count, **self.timed,
            "minutes": mean(lambda run: given_seconds(run) / 60.0),
            "agent steps": mean(largest("agent_steps")), "agent steps/s": mean(rate()), "last score": final(EVALUATION),
        }  # fmt: skip
        tables, notes = [], []
        panels: list[Panel] = []
        for those in parted(groups, "game"):
            game = those[0]["game"]
            tables.append(table(f"{game}, {self.eval_games} games an evaluation", those, columns))
            panels += self._panels(those, game)
            notes += self._verdict(those, game, failed)
        systems = [(name_of(group), group) for group in grouped(outcomes, "library", "algorithm")]
        together = across_games.together([] if self._ends_at_target else systems, last_score(EVALUATION))
        beside = any(group["library"] == THEIRS for group in groups)
        return Report(
            heading=f"Score against {AXES[self._against]}{', beside Stable-Baselines3' * beside}",
            caption=f"mean of evaluation games with frozen parameters, {self.eval_games} where time was enough; "
            f"{spread_text(outcomes, EVALUATION)}",
            finding=sentences(notes) or self._found(groups),
            tables=[*tables, *together.tables],
            panels=[*panels, *together.panels],
            notes=[*notes, *together.notes, *([NOTES] if beside else [])],
            careful=[*_uneven(groups), *_unplanned(outcomes), *together.careful],
        )

    def _panels(self, groups: Sequence[Group], game: str) -> list[Panel]:
        """Panels of at most MOST_SYSTEMS systems each, among which the systems are divided evenly, with one y axis."""
        parts = np.array_split(np.arange(len(groups)), -(-len(groups) // MOST_SYSTEMS))
        return on_one_scale([
            learning_panel(
                game, "raw evaluation score", [groups[place] for place in part], EVALUATION, name_of, self._against,
                among=[run for group in groups for run in group.runs], hold=True, target=self.target_score,
            )
            for part in parts
        ])  # fmt: skip

    @property
    def _against(self) -> str:
        """What curves are drawn against: what limits all runs alike, time or, without a limit of it, agent steps."""
        return SECONDS if self.minutes else STEPS

    @property
    def _ends_at_target(self) -> bool:
        """Whether runs end at the target, and so have no final score to compare."""
        return self.stop_at_target and self.target_score is not None

    def _found(self, groups: Sequence[Group]) -> str:
        """The finding without a verdict: how many runs of each system reached the target they end at, else the range of
        the last scores."""
        if not self._ends_at_target:
            return extremes(groups, *LAST)
        assert self.target_score is not None
        return sentences([reached([*zip(_names(groups), map(self.times, groups))], self.target_score)])

    def _verdict(self, groups: Sequence[Group], game: str, failed: Sequence[Point]) -> list[str]:
        """A clause that compares the systems with the lowest median time to the target, one of each library.

        Empty without a target or a peer, or if no system's median run reaches the target.
        """
        timed: dict[str, list[tuple[TimeToScore, Group]]] = {OURS: [], THEIRS: []}
        for group in groups:
            if (times := self.times(group)) is not None:
                timed[group["library"]].append((times, group))
        if not all(timed.values()):
            return []
        best = [min(of, key=lambda pair: _median(pair[0])) for of in timed.values()]
        (first, winner), (last, loser) = sorted(best, key=lambda pair: _median(pair[0]))
        if first.median is None:
            return []
        begun = f"{game}: {name_of(winner)} reaches {self.target_score:g} after {first.median / 60:.1f} min"
        others = timed[loser["library"]] if last.median is None else [(last, loser)]
        end = _caution(first, [times for times, _ in others]) + self._missing(groups, game, failed)
        if last.median is not None:
            longer = f"{last.median / first.median:.1f} times as long"
            return [f"{begun} and {name_of(loser)} after {last.median / 60:.1f} min (medians): {longer}{end}"]
        given = min(times.least_median() for times, _ in others)
        named = ", ".join(name_of(group) for _, group in others)
        longer = f", {given / first.median:.1f} times as long" if given > first.median else ""
        return [f"{begun} (median), and not {named} within {given / 60:.1f} min{longer}{end}"]

    def _missing(self, groups: Sequence[Group], game: str, failed: Sequence[Point]) -> str:
        """The end of a clause that names the systems without a finished run, and how many of their runs failed; empty
        if there are none."""
        there = {name_of(group) for group in groups}
        planned = [f"{OURS} {name}" for name in self.ours] + [f"{THEIRS} {name}" for name in self.peers]
        failures = Counter(name_of(point.labels) for point in failed if point.labels["game"] == game)
        missing = [name for name in planned if name not in there]
        waiting = [name for name in missing if not failures[name]]
        told = [f"{', '.join(waiting)} not run yet"] if waiting else []
        runs = counted(self.repeats, "run")
        told += [f"{failures[name]} of {runs} of {name} failed" for name in missing if failures[name]]
        return "".join(f"; {clause}" for clause in told)


def peer_game(game: str) -> tuple[str, bool]:
    """The name of a game in Gymnasium (of an Atari game: without namespace and version), and whether it is Atari's."""
    rom = atari_rom(game)
    return (game, False) if rom is None else ("".join(part.capitalize() for part in rom.split("_")), True)


def name_of(labels: Group | Labels) -> str:
    """The name of the system of a group, or of a point with these labels, such as ddrl ba3c."""
    return f"{labels['library']} {labels['algorithm']}"


def _names(groups: Sequence[Group]) -> list[str]:
    """The name of each group's system, with its game if there are several."""
    several = len({group["game"] for group in groups}) > 1
    return [f"{name_of(group)}{' on ' + group['game'] if several else ''}" for group in groups]


def _uneven(groups: Sequence[Group]) -> list[str]:
    """A line that names the systems whose runs differ in their rates, and the rates of these runs; empty if none
    differ by as much as UNEVEN."""
    rates = [[value for value in values(rate(), group.runs) if value is not None] for group in groups]
    named = [
        f"{name} ({'; '.join(map(number, of_runs))})"
        for name, of_runs in zip(_names(groups), rates)
        if of_runs and max(of_runs) > UNEVEN * min(of_runs)
    ]
    what = f"agent steps/s differ by more than {UNEVEN - 1:.0%} between the runs of one system"
    return [f"{what}, as on a machine that is not quiet: {', '.join(named)}"] if named else []


def _unplanned(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields a line for each run of a peer whose program had other options than those of its point, such as a copy
    from another study. Results of earlier versions do not say which options it had."""
    for run in outcomes:
        if not (_is_peers(run.point) and isinstance(run.result.get("options"), list)):
            continue
        had, planned = (_settings(words) for words in (run.result["options"], peer_options(run.point)))
        others = ", ".join(setting for setting in had if setting not in planned)
        missing = ", ".join(setting for setting in planned if setting not in had)
        if others or missing:
            yield f"{run.point.name} ran with other settings than planned: {others or '-'} (planned: {missing or '-'})"


def _settings(words: Sequence[Any]) -> list[str]:
    """Options of a program with their values, such as 'minutes 60.0', from its words."""
    return f" {' '.join(map(str, words))}".split(" --")[1:]


def _median(times: TimeToScore) -> float:
    return np.inf if times.median is None else times.median


def _caution(first: TimeToScore, others: Sequence[TimeToScore]) -> str:
    """The end of a clause with what a ratio of medians hides: there are few runs, or some runs of the slower system
    were faster than some of the other, or could have been, or some runs of the faster one missed the target. Empty if
    there is nothing to say."""
    runs = min(times.count for times in (first, *others))
    if runs < FEW:
        some = "one run says" if runs == 1 else f"{counted(runs, 'run')} say"
        return f"; {some} little about chance"
    slowest = max(*first.reached, first.limit if first.missed else 0.0)
    if slowest >= min((seconds for times in others for seconds in times.reached), default=np.inf):
        return "; some runs of the slower one were faster than some of the other"
    if first.missed:
        too = ", too" if any(times.missed for times in others) else ""
        return f"; {first.missed} of {counted(first.count, 'run')} of the faster one missed it{too}"
    given = min((times.limit for times in others if times.missed), default=np.inf)
    return "; some runs of the slower one had less time than some of the other took" if slowest >= given else ""


def _is_peers(point: Point) -> bool:
    return bool(point.labels["library"] == THEIRS)


def run_point(point: Point, path: Path, peer_python: str) -> None:
    """Runs a point with ddrl, or with Stable-Baselines3, whose Python is `peer_python`."""
    if point.labels["library"] == OURS:
        train_point(point, path)
    else:
        run_peer(peer_python, peer_options(point), path)


def peer_options(point: Point) -> list[str]:
    """The options of the peer's program for a point, without the run's directory, which belongs to the machine."""
    game, atari = peer_game(point.labels["game"])
    run, evaluation, peer = point.config.run, point.config.evaluation, point.labels["rival"]
    options: dict[str, Any] = {
        "algorithm": point.labels["algorithm"], "game": game, "seed": run.seed, "minutes": run.minutes,
        "agent-steps": run.agent_steps, "games": evaluation.eval_games, "line-seconds": LINE_SECONDS,
        "eval-every-minutes": peer["eval_every_minutes"], "replay": peer["peer_replay"],
    }  # fmt: skip
    target = peer.get("target_score", evaluation.target_score)  # a study of an earlier version has only the latter
    if target is not None:
        options["target"] = target
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    flags = ["--atari"] * atari + ["--go-on"] * (not peer.get("stop_at_target", True))
    return [*words, *flags]


RACE = Study(
    name="race",
    about="score against minutes, beside Stable-Baselines3 on the same machine, to a target",
    defaults=RaceSettings(minutes=180.0, games=("pong",), target_score=18.0),
    quick_changes={
        "games": ("CartPole-v1",),
        "minutes": 0.5,
        "target_score": 450.0,
        "ours": ("a2c", "ppo"),
        "peers": ("ppo",),
        "preset": "laptop",
        "eval_games": 10,
        "train_options": "--network mlp",
        "eval_every_minutes": 0.2,
    },
    point_name="{game}-{library}-{algorithm}-seed{seed}",
    cores=lambda settings, labels: settings.cores,
    run=run_point,
    names_failed=True,
)
