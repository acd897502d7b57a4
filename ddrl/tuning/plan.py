"""The plan of a search: what is tuned, and how. It is in DIR/tune.json, for all that run a trial or report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ddrl import rundir
from ddrl.config import TrainConfig
from ddrl.errors import UsageError, read_as
from ddrl.options.command_line import options_of
from ddrl.studies.plan import written_in
from ddrl.tuning.space import Dimension, read_space

SHORTEST_LINE_SECONDS = 0.3
LINES = 40  # of metrics in a trial of minutes, so that its score is known at every rung
FILE, TRIALS, FORMAT = "tune.json", "trials", 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """A search that has been begun.

    Attributes:
        name: unique name of the Optuna study in the journal.
        algorithm, preset: of `ddrl train`.
        train: options of `ddrl train` that were typed.
        base: settings as `ddrl train` would have them.
        texts: the expressions of --space.
        score: "online" or "evaluation", the score to maximize.
        trials: number of all trials.
        prune: whether hopeless trials are stopped early.
        command: the command that began the search.
    """

    directory: Path
    name: str
    algorithm: str
    preset: str
    train: tuple[str, ...]
    base: TrainConfig
    texts: tuple[str, ...]
    score: str
    trials: int
    prune: bool
    command: str

    @property
    def space(self) -> tuple[Dimension, ...]:
        """The settings that are searched."""
        return read_space(self.texts, list(options_of(TrainConfig, self.base)))

    @property
    def of_trials(self) -> TrainConfig:
        """Settings of every trial, except for those that are searched. A trial reports often enough to be compared."""
        run = self.base.run
        seconds = run.log_every_seconds
        if run.minutes:
            seconds = max(SHORTEST_LINE_SECONDS, min(seconds, 60.0 * run.minutes / LINES))
        changes = {"video": False, "log_every_seconds": seconds}
        return self.base.changed(evaluation={"evaluator": self.score == "evaluation"}, run=changes)

    def path(self, number: int) -> Path:
        """The run directory of a trial."""
        return self.directory / TRIALS / f"{number:04d}"


def load(directory: Path) -> Plan | None:
    """The plan in a directory, or None if no search was begun there.

    Raises:
        UsageError: the plan is damaged, or is that of another version of ddrl.
    """
    path = directory / FILE
    if not path.exists():
        return None
    data = rundir.read_json(path)
    if data is None or data.get("format") != FORMAT:
        raise UsageError(f"{path} is damaged, was edited, or comes from another version of ddrl: choose another --dir")
    with read_as(str(path), "choose another --dir"):
        values: dict[str, Any] = {name: value for name, value in data.items() if name != "format"}
        base = rundir.config_from_dict(values.pop("base"), str(path))
        values |= {name: tuple(values[name]) for name in ("train", "texts")}
        return Plan(directory=directory, base=base, **values)


def begin(plan: Plan) -> None:
    """Makes the directory of a new search with its plan.

    Raises:
        FileExistsError: another call, also on another node, has begun a search there meanwhile.
        UsageError: the directory cannot be written.
    """
    with written_in(plan.directory):
        (plan.directory / TRIALS).mkdir(parents=True, exist_ok=True)
    _write(plan, new=True)


def write(plan: Plan) -> None:
    """Writes the plan of a search into its directory.

    Raises:
        UsageError: the directory cannot be written.
    """
    _write(plan, new=False)


def _write(plan: Plan, new: bool) -> None:
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "directory"}
    content = values | {"base": rundir.config_to_dict(plan.base), "format": FORMAT}
    with written_in(plan.directory, new):
        rundir.write_json(plan.directory / FILE, content, new)
