"""One rank of a job that is profiled: `python -m ddrl.bench.profile.rank REQUEST RUN_DIR ...`, as `ddrl.roles`.

A thread waits until the run has begun to learn, records for a while, and writes what it has found. Rank 0 opens the
window for all of them, and ends the run when all have written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from cluster.job import detect_job
from cluster.topology import usable_cores
from ddrl.bench.profile.parts import installed, name_emulators, threads_now
from ddrl.bench.profile.spans import Recorder, clipped, thread_time
from ddrl.errors import in_one_line
from ddrl.reporting.metrics import read_metrics
from ddrl.roles.__main__ import main
from ddrl.rundir import ask_to_stop, read_json, write_json

POLL_SECONDS = 0.1
CALLS = 20_000  # calls of an empty function, to measure the cost of a span
WRITTEN_SECONDS = 60.0  # for all ranks to write what they have recorded


@dataclasses.dataclass(frozen=True)
class Request:
    """What the ranks must record.

    Attributes:
        directory: where each rank writes its file, rank-N.json.
        seconds: length of the window.
        warm_up: seconds from the first update to the window.
        ranks: number of ranks in the job.
        record: False: nothing is wrapped or recorded, and the ranks write empty objects.
    """

    directory: str
    seconds: float
    warm_up: float
    ranks: int
    record: bool = True

    def file(self, rank: int) -> Path:
        """The path of the file that a rank writes."""
        return Path(self.directory) / f"rank-{rank}.json"


class Clocks(NamedTuple):
    """The readings of several clocks at one moment, in nanoseconds.

    Attributes:
        wall: time.monotonic_ns, the same for all processes of a host.
        process: processor time of this process.
        machine: processor time of the whole machine, see `_machine_time`.
        threads: native ID of each thread of this process -> its name in the operating system, and its processor time.
    """

    wall: int
    process: int
    machine: int
    threads: dict[int, tuple[str, int]]

    @classmethod
    def now(cls) -> Clocks:
        """Reads the clocks."""
        return cls(time.monotonic_ns(), time.process_time_ns(), _machine_time(), threads_now(thread_time))


def profile(request: Request, rank: int, run_dir: Path) -> None:
    """Waits for the window, records, and writes the rank's file; runs in a thread of its own.

    If that fails, the file says why, and the run ends.
    """
    try:
        _profile(request, rank, run_dir)
    except Exception as error:  # noqa: BLE001 - a run that nobody ends would go on for ever
        with contextlib.suppress(OSError):
            write_json(request.file(rank), {"error": in_one_line(error)})
        ask_to_stop(run_dir, "the profile failed")


def _profile(request: Request, rank: int, run_dir: Path) -> None:
    opening = Path(request.directory) / "window"
    if rank == 0:
        while not any(record["kind"] == "train" and record.get("update", 0) > 0 for record in read_metrics(run_dir)):
            time.sleep(POLL_SECONDS)
        write_json(opening, {"start": time.monotonic_ns() + round(1e9 * request.warm_up)})
    while (window := read_json(opening)) is None:
        time.sleep(POLL_SECONDS)
    start = window["start"]
    write_json(request.file(rank), _recorded(request, start) if request.record else _let_pass(request, start))
    if rank == 0:
        end = time.monotonic() + WRITTEN_SECONDS
        while not all(request.file(other).exists() for other in range(request.ranks)) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        ask_to_stop(run_dir, "the profile is written")


def _let_pass(request: Request, start: int) -> dict[str, Any]:
    _sleep_until(start)
    time.sleep(request.seconds)
    return {}


def _recorded(request: Request, start: int) -> dict[str, Any]:
    """Records the window that begins at `start` of time.monotonic_ns; returns the fields of `report.Rank`."""
    recorder = Recorder()
    with installed(recorder):
        recorder.active = True
        _sleep_until(start)
        before = Clocks.now()
        time.sleep(request.seconds)
        after, tracks = Clocks.now(), recorder.tracks()
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        recorder.active = False
    names[threading.main_thread().native_id] = "main"
    threads = [
        [thread, names.get(thread, name), used - before.threads.get(thread, ("", 0))[1]]
        for thread, (name, used) in sorted(after.threads.items())
    ]
    return {
        "start": before.wall,
        "stop": after.wall,
        "process": after.process - before.process,
        "machine": after.machine - before.machine,
        "cores": len(usable_cores()),
        "span_ns": _span_cost(),
        "threads": threads,
        "spans": {track.thread: clipped(spans, before.wall, after.wall) for track, spans in tracks},
    }


def _sleep_until(moment: int) -> None:
    time.sleep(max(0, moment - time.monotonic_ns()) / 1e9)


def _machine_time() -> int:
    """Nanoseconds that all cores of the machine have worked since its start, for any process (steal included)."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, *others = map(int, file.readline().split()[1:9])  # idle and iowait are left out
    return (user + nice + system + sum(others)) * (10**9 // os.sysconf("SC_CLK_TCK"))


def _span_cost() -> float:
    """Nanoseconds of processor time that it takes to record one span."""
    recorder = Recorder()
    function = recorder.wrap("nothing", lambda: None)
    recorder.active = True
    begin = time.thread_time_ns()
    for _ in range(CALLS):
        function()
    return (time.thread_time_ns() - begin) / CALLS


def start(request: Request, environ: Any = os.environ) -> None:
    """Starts the thread that profiles this rank; sys.argv must by now be that of `ddrl.roles`."""
    job = detect_job(environ) if request.ranks > 1 else None
    name_emulators()
    arguments = (request, job.rank if job else 0, Path(sys.argv[1]))
    threading.Thread(target=profile, args=arguments, name="profile", daemon=True).start()


if __name__ == "__main__":
    start(Request(**json.loads(sys.argv.pop(1))))
    sys.exit(main())
