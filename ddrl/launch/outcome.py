"""How a run ended, from RUN/result.json, which the chief writes last, or else from the log of its ranks.

result.json: {"status": "finished" | "target" | "stopped" | "failed", "message": str}, and
"usage_error": true where the message is about what was asked for, "unevaluated": true where a request to end cut the
final evaluation of a finished run short.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ddrl import rundir
from ddrl.checkpoint import list_checkpoints, load_latest
from ddrl.config import TrainConfig
from ddrl.errors import UsageError, shortened
from ddrl.files import open_regular
from ddrl.named_runs import go_on
from ddrl.reporting.metrics import is_resumed, read_metrics
from ddrl.reporting.phases import EVALUATING

ENDED_WELL = ("finished", "target")
BUDGETS = ("minutes", "agent_steps", "max_updates")
LOG_LINES = 15  # that are shown
LOG_BYTES = 64 * 1024
TITLES = {
    "finished": ("finished", "the budget is used up"),
    "target": ("finished", "the target score is reached"),
    "stopped": ("stopped", "as requested"),
}
RULE = re.compile(r"-{20,}$")  # mpirun frames its messages with two of these
FAREWELL = re.compile(r"(prterun|mpirun) (noticed|detected) that")
TRACEBACK = r"Traceback \(most recent call last\):\n(?:\s.*\n)*"  # what follows is the error
CHAINED = r"(?:During handling of|The above exception was).*\n"
ERROR = re.compile(
    rf"^(?:(?:{TRACEBACK}\S.*\n{CHAINED})*{TRACEBACK}(\S.*)|ddrl: (?!warning)(.+)|(Fatal Python error.*))", re.MULTILINE
)
"""The last error of a process, among lines of which none is empty; of several processes, the first that failed."""


def ended_well(result: Mapping[str, Any]) -> bool:
    """Whether result.json tells of a run that is complete, its final evaluation included."""
    return result.get("status") in ENDED_WELL and not result.get("unevaluated")


def lacks_evaluation_only(path: Path, config: TrainConfig) -> bool:
    """Whether the run in `path` was asked to end, or died, in its final evaluation, and has no other budgets with these
    settings than its newest checkpoint.

    To be asked before the result of the run is removed.

    Raises:
        UsageError: there are checkpoints, and none is sound.
    """
    result = rundir.read_json(path / rundir.RESULT)
    lacks = in_final_evaluation(read_metrics(path)) if result is None or "lost" in result else result.get("unevaluated")
    if not (lacks and list_checkpoints(path)):
        return False
    before = load_latest(path).config.get("run", {})  # config.json may be that of a start that died before it trained
    return all(getattr(config.run, name) == before.get(name) for name in BUDGETS)


def in_final_evaluation(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the records of a run, oldest first, end in its final evaluation, with its last checkpoint saved."""
    phase, saved = "", False
    for record in records:
        if is_resumed(record) or record.get("name") in ("checkpoint", "checkpoint_failed"):
            saved = record["name"] != "checkpoint_failed"
        phase = "" if is_resumed(record) else record.get("phase", phase)
    return saved and phase == EVALUATING


def report(
    path: Path, log_start: int, overdue: str, console: Console, failed: Callable[[str], object] = lambda why: None
) -> int:
    """Prints how the run ended; returns the exit status.

    Args:
        path: the run directory.
        log_start: byte of log.txt at which this part of the run begins.
        overdue: why ranks were killed, or empty.
        console: where the user sees it.
        failed: called with the cause, in one line, if the run failed.

    Raises:
        UsageError: when the ranks found that what was asked for cannot be.
    """
    result = rundir.read_json(path / rundir.RESULT) or {}
    status, message = result.get("status"), str(result.get("message", ""))
    if status == "failed" and result.get("usage_error"):
        raise UsageError(message)
    if status not in TITLES:
        tail = [] if message else log_tail(path / rundir.LOG, log_start)
        why = message or _cause(overdue, tail)
        failed(why if message else f"{why}; see {path / rundir.LOG}")
        _print_failure(path, why, tail[-LOG_LINES:], console)
        return 1
    title, reason = TITLES[status]
    line = message if message.startswith(title) else f"{title}: {message or reason}"
    console.print(line, highlight=False, markup=False)
    if overdue:
        console.print(f"warning: {overdue}", highlight=False)
    return 0


def _cause(overdue: str, tail: Sequence[str]) -> str:
    """Why a run without a result failed, in one line, by what was seen of its ranks and by the lines that they left."""
    found = ERROR.search("\n".join(tail).rpartition(rundir.GOES_ON)[2])  # not of a process that the run outlived
    error = shortened(next(filter(None, found.groups()))) if found else ""
    if overdue or error:
        return f"{overdue} ({error})" if overdue and error else overdue or error
    said = [line for line in tail if not RULE.match(line)]
    last = said[-1:] if len(said) == len(tail) else said  # there is nothing but mpirun's farewell
    words = shortened(" ".join(" ".join(last).split()))
    return f"no result; the log ends with: {words}" if words else "no result"


def _print_failure(path: Path, why: str, tail: Sequence[str], console: Console) -> None:
    # What is wrapped cannot be copied.
    console.print(f"ddrl: the run failed: {why}", highlight=False, markup=False, soft_wrap=True)
    if tail:
        console.print(f"the last lines of {path / rundir.LOG}:", highlight=False)
        console.print("\n".join(tail), highlight=False, markup=False)
    remedy = "" if "--resume" in why else f"; {go_on(path)}"
    console.print(f"see {path / rundir.LOG}{remedy}", highlight=False, soft_wrap=True)


def log_tail(path: Path, start: int = 0) -> list[str]:
    """The last lines since byte `start`, without mpirun's own farewell, unless there is nothing else."""
    try:
        with open_regular(path) as file:
            file.seek(max(start, path.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return without_farewell(lines) or lines


def without_farewell(lines: list[str]) -> list[str]:
    """Drops the framed block in which mpirun says that a rank ended badly: the rank itself has said why."""
    kept: list[str] = []
    block: list[str] | None = None
    for line in lines:
        if not RULE.match(line):
            (kept if block is None else block).append(line)
        elif block is None:
            block = []
        else:
            kept += [] if FAREWELL.search(" ".join(block)) else block
            block = None
    return kept + (block or [])
