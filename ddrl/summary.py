"""What `ddrl train` says at the end, from RUN/result.json, which the chief writes last.

result.json: {"status": "finished" | "target" | "stopped" | "failed", "message": str} and, where known:
"usage_error" (true: the message is about what was asked for), "checkpoint" (path), and the numbers of FIGURES.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.console import Console

from ddrl import rundir
from ddrl.errors import UsageError

LOG_LINES = 15
TITLES = {
    "finished": "finished: the budget is used up",
    "target": "finished: the target score is reached",
    "stopped": "stopped as asked",
}
FIGURES = {
    "evaluation_score": ("evaluation score, mean of the last games", "{:.2f}"),
    "evaluation_max": ("evaluation score, best game", "{:.2f}"),
    "online_score": ("online score, last 100 training episodes", "{:.2f}"),
    "time_to_target_seconds": ("time to target score", "{:.0f} s"),
    "agent_steps": ("agent steps", "{:,.0f}"),
    "updates": ("updates", "{:,.0f}"),
    "wall_seconds": ("wall time", "{:.0f} s"),
    "agent_steps_per_s": ("agent steps per second", "{:,.0f}"),
    "datapoints_per_s": ("data-points learned per second", "{:,.0f}"),
    "updates_per_s": ("updates per second", "{:,.1f}"),
}
NOISE = re.compile(r"^-{20,}\n(?:(?!-{20,}\n).*\n)*?.*(?:prterun|mpirun|PRTE)(?:(?!-{20,}\n).*\n)*?-{20,}\n?", re.M)


def report(path: Path, log_start: int, overdue: str, console: Console) -> int:
    """Prints how the run ended; returns the exit status.

    Raises:
        UsageError: when the ranks found that what was asked for cannot be.
    """
    result = rundir.read_json(path / rundir.RESULT)
    status = result.get("status") if isinstance(result, dict) else None
    message = str(result.get("message", "")) if isinstance(result, dict) else ""
    if status == "failed" and result.get("usage_error"):
        raise UsageError(message)
    if status not in TITLES:
        _print_failure(path, log_start, message or overdue, console)
        return 1
    console.print(TITLES[status] + (f" ({message})" if message else ""), highlight=False, markup=False)
    if overdue:
        console.print(f"warning: {overdue}", highlight=False)
    print_figures(result, console)
    return 0


def print_figures(result: dict[str, Any], console: Console) -> None:
    """Prints the numbers that are there, one a line."""
    for name, (title, form) in FIGURES.items():
        value = result.get(name)
        if isinstance(value, (int, float)):
            console.print(f"  {title}: {form.format(value)}", highlight=False)


def next_steps(path: Path, console: Console) -> None:
    """Prints how to go on."""
    checkpoint = (rundir.read_json(path / rundir.RESULT) or {}).get("checkpoint") or path
    for text in (
        f"checkpoint: {checkpoint}",
        f"go on:      ddrl train --resume {path} --minutes 10",
        f"watch it:   ddrl play {path} --video {path / 'play.mp4'}",
        f"judge it:   ddrl evaluate {path} --games 50",
    ):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _print_failure(path: Path, log_start: int, message: str, console: Console) -> None:
    console.print(f"ddrl: the run failed: {message or 'its ranks ended without a result'}", highlight=False, markup=False)
    tail = log_tail(path / rundir.LOG, log_start)
    if tail and not message:
        console.print(f"the last lines of {path / rundir.LOG}:", highlight=False)
        console.print("\n".join(tail), highlight=False, markup=False)
    else:
        console.print(f"see {path / rundir.LOG}; go on: ddrl train --resume {path}", highlight=False, soft_wrap=True)


def log_tail(path: Path, start: int = 0) -> list[str]:
    """The last lines since byte `start`, without mpirun's own farewell, unless there is nothing else."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line for line in NOISE.sub("", text).splitlines() if line.strip()]
    return (lines or [line for line in text.splitlines() if line.strip()])[-LOG_LINES:]
