"""A callback of one's own: a table of the evaluations, and a word where a score is a new best.

    ddrl train ppo --plugin examples/evaluation_table.py --callbacks evaluation-table --preset smoke

In a job the chief calls it. From Python, `ddrl.train("ppo", preset="smoke", callbacks=["evaluation-table"],
plugin="examples/evaluation_table.py")` does the same.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import ddrl

COLUMNS = ("version", "agent_steps", "wall_seconds", "mean", "maximum", "games", "best")


class EvaluationTable(ddrl.Callback):
    """Writes evaluations.csv into the run directory; a resumed run goes on with it.

    Args:
        context: the settings of the run and its directory.
    """

    def __init__(self, context: ddrl.RunContext) -> None:
        self.path = Path(context.run_dir) / "evaluations.csv"
        self.best = float("-inf")

    def on_start(self) -> None:
        """Reads the best score so far, or begins the table."""
        if self.path.exists():
            with self.path.open(newline="") as file:
                self.best = max((float(row["mean"]) for row in csv.DictReader(file)), default=self.best)
            return
        with self.path.open("w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)

    def on_evaluation(self, record: Any) -> None:
        """A row of the table."""
        is_best = record["mean"] > self.best
        self.best = max(self.best, record["mean"])
        row = {**record, "best": int(is_best)}
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow([row.get(column, "") for column in COLUMNS])


ddrl.register_callback("evaluation-table", EvaluationTable)
