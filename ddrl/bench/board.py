"""`ddrl bench board`: how fast the board opens with many long runs, and the memory that it takes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddrl import checks, programs, rundir, sealed
from ddrl.algorithms import preset
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine
from ddrl.reporting.metrics import evaluation_record

VARIANTS = 4  # different metrics files; the other runs have copies of them
FIRST = 6  # runs whose curves the page shows at first
SERIES = (
    "train/agent_steps", "train/update", "train/wall_seconds", "evaluation/agent_steps", "evaluation/version",
    "evaluation/wall_seconds", "evaluation/mean", "train/online_score_mean", "train/agent_steps_per_s",
    "train/updates_per_s", "train/loss", "train/entropy", "train/gradient_norm", "train/learning_rate",
)  # fmt: skip
"""The series that the page requests to draw its first charts."""
EVALUATED_EVERY = 25  # lines of metrics per evaluation record
GAUGES = (
    "policy_loss", "value_loss", "entropy", "advantage_mean", "advantage_rms", "value_mean", "importance_ratio_mean",
    "gradient_norm", "compute_ms", "exchange_ms", "average_gradient_norm", "compute_ms_deviation", "lag_mean",
)  # fmt: skip
SPLIT = {
    "parameter_server": ("receive", "apply", "send"),
    "worker": ("inference", "simulation", "wait_data", "wait_parameters", "gradient", "push", "pull"),
}
RANKS = ("parameter_server-0", "worker-0", "worker-1", "evaluator-0", "chief-0")
ALL_READ_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class BoardBenchArguments(BenchmarkArguments):
    """Write run directories as training leaves them, open `ddrl board` on them, ask what its page asks, and measure."""

    runs: int = 200
    """Run directories."""
    lines: int = 10_000
    """Lines in the metrics.jsonl of each, of about 1.3 kB."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "runs", "lines")


def measure(arguments: BoardBenchArguments) -> dict[str, Any]:
    """Measures times in seconds and sizes in MB; NOTES explains each value.

    Raises:
        UsageError: there is no space for the runs, or the board does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="ddrl-bench-board-") as directory:
        root = Path(directory)
        size = write_runs(root, arguments.runs, arguments.lines)
        start = time.perf_counter()
        with served(root) as (address, pid):
            seconds: dict[str, float] = {"starts": time.perf_counter() - start}
            page = len(ask(address, "/"))
            rows = json.loads(ask(address, "/runs"))
            seconds["table"] = time.perf_counter() - start
            ids = rows["ids"]
            series = ask(address, "/series", ids=ids[:FIRST], name=SERIES)
            seconds["curves"] = time.perf_counter() - start
            while json.loads(ask(address, "/runs", since=1))["reading"]:
                if time.perf_counter() - start > ALL_READ_SECONDS:
                    raise UsageError(
                        f"the board has not read all runs after {ALL_READ_SECONDS:.0f} s; use fewer --runs"
                    )
            seconds["all"] = time.perf_counter() - start
            before = time.perf_counter()
            all_series = ask(address, "/series", ids=ids, name=SERIES)
            seconds["all_curves"] = time.perf_counter() - before
            appended = _read_for_one_line(root, address, pid)
            memory = _peak_mb(pid)
    return {
        "runs": len(ids),
        "lines": arguments.lines,
        "metrics_mb": round(size / 1e6, 1),
        **{f"{name}_seconds": round(value, 2) for name, value in seconds.items()},
        "page_kb": round(page / 1e3, 1),
        "first_curves_kb": round(len(series) / 1e3, 1),
        "all_curves_kb": round(len(all_series) / 1e3, 1),
        "appended_line_bytes_read": appended,
        "peak_memory_mb": round(memory, 1),
    }


def write_runs(root: Path, runs: int, lines: int) -> int:
    """Makes run directories; returns the total size of their metrics files in bytes.

    Raises:
        UsageError: there is not enough space for them.
    """
    variants = [_metrics(seed, lines) for seed in range(min(VARIANTS, runs))]
    size = sum(len(variants[i % VARIANTS]) for i in range(runs))
    if size > (free := shutil.disk_usage(root).free):
        raise UsageError(
            f"--runs {runs}: they take {size / 1e9:.1f} GB, and {root.parent} has {free / 1e9:.1f} GB left; use fewer"
        )
    for i in range(runs):
        config = preset("smoke", None, this_machine()).changed(run={"seed": i + 1})
        path, _ = rundir.create_run_dir(config.changed(run={"run_dir": str(root / f"run-{i + 1:04d}")}))
        (path / rundir.METRICS).write_bytes(variants[i % VARIANTS])
        rundir.write_json(path / rundir.RESULT, {"status": "finished", "message": "the budget is used up"})
    return size


def _metrics(seed: int, lines: int) -> bytes:
    """The content of a made-up metrics.jsonl, as of a job of two workers, a parameter server and an evaluator."""
    draw, parts = random.Random(seed), []
    for i in range(lines):
        if i % EVALUATED_EVERY == EVALUATED_EVERY - 1:
            record = evaluation_record(
                mean=draw.gauss(i / lines, 0.1), maximum=1.0, games=20, version=5 * i, agent_steps=320 * i,
                unfinished=0, wall_seconds=5.0 * i, seconds=1.5, protocol={"protocol": "bench", "game": "bench"},
            )  # fmt: skip
        else:
            record = _train_record(i, lines, draw)
        parts.append(sealed.line_bytes(record))
    return b"".join(parts)


def _train_record(line: int, lines: int, draw: random.Random) -> dict[str, Any]:

    def number() -> float:
        return draw.gauss(1.0, 0.1)

    return {
        "kind": "train", "wall_seconds": 5.0 * line, "update": 5 * line, "agent_steps": 320 * line,
        "gradients_dropped": 0, "agent_steps_per_s": 64 * number(), "frames_per_s": 256 * number(),
        "datapoints_per_s": 64 * number(), "updates_per_s": number(), "effective_batch": 64.0, "episodes": 35 * line,
        "online_score_mean": line / lines + 0.1 * number(), "online_score_max": 1.0, "lag_max": 5.0, "loss": number(),
        "learning_rate": 0.001, "live_workers": 2, **{name: number() for name in GAUGES},
        "time_split": {role: {name: round(0.1 * number(), 4) for name in names} for role, names in SPLIT.items()},
        "cpu_cores": {rank: round(0.3 * number(), 4) for rank in RANKS},
        "resident_mb": {rank: round(600 * number(), 1) for rank in RANKS},
        "exchange_ms_by_worker": {rank: round(500 * number(), 3) for rank in RANKS[1:3]},
    }  # fmt: skip


@contextlib.contextmanager
def served(root: Path) -> Iterator[tuple[str, int]]:
    """Runs `ddrl board` on these runs in another process; yields its address and its process ID."""
    command = [*programs.python_command("ddrl.cli"), "board", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next((match[0] for line in process.stdout if (match := re.search(r"http://\S+", line))), "")
            if not address:
                raise UsageError("`ddrl board` did not start: see what it printed above")
            yield address, process.pid
        finally:
            process.terminate()


def ask(address: str, path: str, ids: list[int] | None = None, name: tuple[str, ...] = (), since: int = 0) -> bytes:
    """The board's answer to one HTTP request, as bytes.

    Args:
        address: the address that the board printed.
        path: the path to request.
        ids: IDs of runs.
        name: names of series.
        since: the largest version of a run that the page already has (0: it has no runs yet).
    """
    parts = urllib.parse.urlsplit(address)
    query = [*urllib.parse.parse_qsl(parts.query), *(("name", each) for each in name)]
    query += [("ids", ",".join(map(str, ids)))] if ids is not None else []
    query += [("since", str(since))] if since else []
    asked = parts._replace(path=path, query=urllib.parse.urlencode(query))
    with urllib.request.urlopen(urllib.parse.urlunsplit(asked), timeout=60.0) as answer:  # noqa: S310 - the board's own
        content: bytes = answer.read()
        return content


def _read_for_one_line(root: Path, address: str, pid: int) -> int:
    """Bytes that the board reads from all files when one line was appended to one run and the page asks again."""
    path = min(root.iterdir()) / rundir.METRICS
    before = json.loads(ask(address, "/runs"))
    versions = {run["id"]: run["version"] for run in before["runs"]}
    read = _bytes_read(pid)
    with path.open("ab") as file:
        file.write(sealed.line_bytes(_train_record(10**6, 10**6, random.Random(0))))
    end = time.monotonic() + ALL_READ_SECONDS
    while time.monotonic() < end:
        if any(run["version"] != versions[run["id"]] for run in json.loads(ask(address, "/runs"))["runs"]):
            return _bytes_read(pid) - read
        time.sleep(0.5)
    raise UsageError(f"the board has not read an appended line after {ALL_READ_SECONDS:.0f} s; use fewer --runs")


def _bytes_read(pid: int) -> int:
    return int(_field(Path(f"/proc/{pid}/io"), "rchar"))


def _peak_mb(pid: int) -> float:
    return int(_field(Path(f"/proc/{pid}/status"), "VmHWM").split()[0]) * 1024 / 1e6


def _field(path: Path, name: str) -> str:
    return next(line.partition(":")[2] for line in path.read_text().splitlines() if line.startswith(name))


NOTES = {
    "starts_seconds": "from the command to its address",
    "table_seconds": "from the command to all rows of the table",
    "curves_seconds": f"from the command to the curves of the first {FIRST} runs",
    "all_seconds": "from the command until every line of every run was read, while the page is used",
    "all_curves_seconds": "the curves of all runs at once, when they are read",
    "appended_line_bytes_read": "of all files, for one line that came to one run",
    "peak_memory_mb": "of the board's process",
}
main = Benchmark(
    name="board", arguments=BoardBenchArguments, measure=measure, title="the board with many runs", notes=NOTES
)
