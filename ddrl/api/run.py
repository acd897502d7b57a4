"""A run from Python: its settings, metrics, checkpoints, evaluations and agent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ddrl import checks, plugin_modules, rundir
from ddrl.checkpoint import list_checkpoints
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.named_runs import run_and_checkpoint
from ddrl.options.named_settings import plain
from ddrl.reporting.metrics import read_metrics, without_undone
from ddrl.reporting.plots import figure_of_run

if TYPE_CHECKING:
    import gymnasium

    from ddrl.evaluation.agent import Agent

KINDS = ("train", "evaluation", "event")


def load(
    path: str | os.PathLike[str], plugin: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = ()
) -> Run:
    """The run in a directory, whether it has ended or not.

    Args:
        path: of the run directory.
        plugin: a plugin of the run that has moved, by its new path, or several (None: none).

    Raises:
        UsageError: there is no run, or a plugin cannot be loaded.
    """
    return Run(path, plugin_modules.load_named(plugin, anew=True))


class Run:
    """A run directory. It reads what is there when it is asked, so that a run under way can be looked at, too.

    Args:
        path: of the run directory.
        plugins: as `load` has loaded them, in place of those that the run recorded.

    Attributes:
        path: absolute.

    Raises:
        UsageError: it is no run.
    """

    def __init__(self, path: str | os.PathLike[str], plugins: Sequence[str] = ()) -> None:
        self.path, self._plugins = Path(path).absolute(), tuple(plugins)
        rundir.load_config(Path(path))

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        config, result = self.config, self.result
        state = result.get("status", "no result yet")
        return f"<ddrl.Run {self.path}: {config.title} on {config.environment.game}, {state}>"

    @property
    def config(self) -> TrainConfig:
        """All settings."""
        return rundir.load_config(self._with_plugins())

    def _with_plugins(self) -> Path:
        """The directory, once its plugins stand for the recorded ones again: other runs may have been loaded since."""
        plugin_modules.load_named(self._plugins)
        return self.path

    @property
    def result(self) -> dict[str, Any]:
        """How it ended: status (finished, target, stopped, failed), message, totals; empty before its end."""
        return rundir.read_json(self.path / rundir.RESULT) or {}

    @property
    def checkpoints(self) -> list[Path]:
        """Its checkpoints, oldest first."""
        return [Path(path) for path in list_checkpoints(self.path)]

    def metrics(self, kind: str = "train", pandas: bool = False) -> Any:
        """What was measured, by column: name -> array <float64 or object>[records], oldest record first.

        What a record does not have is NaN in a column of numbers, and None in one of other things. What is nested has
        names such as time_split/worker/inference. Records that a resume took back are left out.

        Args:
            kind: train, evaluation or event.
            pandas: a pandas.DataFrame of the same columns.

        Raises:
            UsageError: there is no such kind, or pandas is not installed.
        """
        if kind not in KINDS:
            raise UsageError(f"there are no metrics of kind {kind!r:.80}; use one of {', '.join(KINDS)}")
        records = [record for record in without_undone(read_metrics(self.path)) if record["kind"] == kind]
        columns = columns_of([{k: v for k, v in record.items() if k != "kind"} for record in records])
        if not pandas:
            return columns
        try:
            import pandas as library
        except ImportError as error:
            raise UsageError("pandas is not installed: pip install pandas, or take the arrays of metrics()") from error
        return library.DataFrame(columns)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The learning curve as a matplotlib Figure, which a notebook shows.

        Args:
            path: of a picture to write, too.
        """
        figure = figure_of_run(self._with_plugins())
        if path is not None:
            figure.savefig(path, dpi=200)
        return figure

    def evaluate(
        self,
        games: int = 50,
        seed: int = 0,
        epsilon: float | None = None,
        starts: str | os.PathLike[str] = "",
        checkpoint: int | str | os.PathLike[str] | None = "",
        actions: Literal["greedy", "drawn"] | None = None,
    ) -> dict[str, Any]:
        """Plays games with a checkpoint as `ddrl evaluate` does; returns the record that it adds to the run: mean,
        maximum, minimum, deviation (of several games), scores, protocol, ...

        If it cannot be added, as in a directory in which this user may not write, a warning says so.

        Args:
            games: to play.
            seed: of the games.
            epsilon: probability of a random action (None: that of the run's evaluations).
            starts: Atari: a file of recorded starts.
            checkpoint: the number of its update, one of `checkpoints`, or "best": of its best evaluation (empty or
                None: the newest).
            actions: the greedy ones, or drawn from the policy (None: those of the run's evaluations, greedy where
                `epsilon` is given).

        Raises:
            UsageError: no checkpoint, or numbers that cannot be.
        """
        from ddrl.evaluation.newest import EvaluateArguments, evaluate_newest

        numbers = _numbers(EvaluateArguments, games=games, seed=seed, epsilon=epsilon)
        run, named = str(self._with_plugins()), _named(checkpoint)
        return evaluate_newest(
            EvaluateArguments(run, **numbers, actions=actions, starts=os.fspath(starts), checkpoint=named)
        )

    def play(
        self,
        video: str | os.PathLike[str] | None = "",
        seed: int = 0,
        max_agent_steps: int = 3000,
        checkpoint: int | str | os.PathLike[str] | None = "",
    ) -> Path:
        """Records a video of one game with a checkpoint as `ddrl play` does; returns its path.

        Args:
            video: the file to write, .mp4 or .gif (empty or None: play.mp4 in the run's directory).
            seed: of the game.
            max_agent_steps: after which the video ends, if the game has not.
            checkpoint: as of `evaluate`.

        Raises:
            UsageError: no checkpoint, a game that draws no pictures, a file that cannot be a video, or numbers that
                cannot be.
        """
        from ddrl.evaluation.newest import PlayArguments, play_newest

        numbers = _numbers(PlayArguments, seed=seed, max_agent_steps=max_agent_steps)
        run, file = str(self._with_plugins()), os.fspath("" if video is None else video)
        return play_newest(PlayArguments(run, file, checkpoint=_named(checkpoint), **numbers)).video

    def agent(self, checkpoint: int | str | os.PathLike[str] | None = "", seed: int = 0) -> Agent:
        """What it has learned, for use in any loop. TensorFlow is loaded.

        Args:
            checkpoint: as of `evaluate`.
            seed: of the actions that are drawn.

        Raises:
            UsageError: there is no checkpoint that fits.
        """
        from ddrl.evaluation.agent import load_agent

        _, chosen = run_and_checkpoint(str(self.path), _named(checkpoint))
        return load_agent(self._with_plugins(), checkpoint=chosen, seed=seed, compute_dtype="float32")

    def environment(self, render_mode: str | None = None) -> gymnasium.Env:
        """One game as the agent saw it; see `ddrl.make_environment`."""
        from ddrl.evaluation.environment import make_environment

        return make_environment(self._with_plugins(), render_mode)


def _named(checkpoint: int | str | os.PathLike[str] | None) -> str:
    """As `--checkpoint` takes it; None is its default, too."""
    return "" if checkpoint is None else str(plain(checkpoint, str))


def _numbers(kind: type, **given: Any) -> dict[str, Any]:
    """Values as the settings class `kind` takes them, NumPy's numbers, too. Raises UsageError for another type."""
    hints = checks.hints(kind)
    return {name: rundir.decode_value(hints[name], plain(value, hints[name]), name) for name, value in given.items()}


def columns_of(records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Name -> column of flat or nested records, NaN or None where one lacks it."""
    flat = [dict(_flat(record)) for record in records]
    columns = {}
    for name in dict.fromkeys(name for record in flat for name in record):
        values = [record.get(name) for record in flat]
        numbers = all(value is None or isinstance(value, (int, float)) for value in values)
        columns[name] = np.array(values, np.float64) if numbers else _objects(values)
    return columns


def _objects(values: list[Any]) -> np.ndarray:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _flat(record: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for name, value in record.items():
        items += _flat(value, f"{prefix}{name}/") if isinstance(value, dict) else [(prefix + name, value)]
    return items
