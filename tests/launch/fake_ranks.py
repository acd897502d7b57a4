"""Stands in for `python -m ddrl.roles` in the launcher's tests: fake_ranks.py BEHAVIOR RUN_DIR [--resume].

Under mpirun without MPI_Init, so that it starts at once. Each rank leaves its pid in RUN_DIR/pid-RANK.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from ddrl.placement.start import AT_MPI, leave_note
from ddrl.reporting.phases import EVALUATING

LIMIT_SECONDS = 130.0  # longer than any test waits


def main() -> int:
    behavior, run_dir = sys.argv[1], Path(sys.argv[2])
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    leave_note(run_dir, os.environ, AT_MPI)
    if behavior == "deaf":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LIMIT_SECONDS})"])
        (run_dir / f"pid-child-{rank}").write_text(str(child.pid))
    if behavior in ("polite", "willing"):
        signal.signal(signal.SIGTERM, lambda *_: (run_dir / "stop").touch())  # as real ranks take it
    (run_dir / f"pid-{rank}").write_text(str(os.getpid()))
    if "--resume" in sys.argv:
        (run_dir / "resumed").touch()
    if "--spent" in sys.argv:
        (run_dir / "spent").write_text(sys.argv[sys.argv.index("--spent") + 1])
    if "--evaluates-only" in sys.argv:
        (run_dir / "evaluates-only").touch()
    if behavior in ("obedient", "polite", "willing", "slow", "deaf"):
        wait(run_dir, obey=behavior not in ("deaf", "willing"))
    if behavior == "slow":
        time.sleep(1.0)
    if rank == 0:
        wait_for_others(run_dir)
        finish(behavior, run_dir)
    elif behavior == "crash":
        time.sleep(LIMIT_SECONDS)  # rank 0 fails first, and mpirun ends the others
    elif behavior == "usage":
        wait_for_result(run_dir)  # all ranks find the same, and rank 0 says it
    return 1 if behavior in ("crash", "usage") else 0


def wait(run_dir: Path, obey: bool) -> None:
    """Until the stop file is there; the deaf wait on."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end and not (obey and (run_dir / "stop").exists()):
        time.sleep(0.05)


def wait_for_others(run_dir: Path) -> None:
    """Until each rank has left its pid: those that come late are ended with a rank that fails, and leave none."""
    end = time.monotonic() + LIMIT_SECONDS
    paths = [run_dir / f"pid-{rank}" for rank in range(int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")))]
    while time.monotonic() < end and not all(path.exists() and path.read_text() for path in paths):
        time.sleep(0.05)


def wait_for_result(run_dir: Path) -> None:
    """Until rank 0 has left what the chief leaves."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end and not (run_dir / "result.json").exists():
        time.sleep(0.05)


def wait_for_log(run_dir: Path, text: str) -> None:
    """Until mpirun has passed on what this rank wrote: it may lose what a rank writes in its very last moment."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end and text not in (run_dir / "log.txt").read_text(errors="replace"):
        time.sleep(0.05)


def finish(behavior: str, run_dir: Path) -> None:
    """What the chief leaves."""
    results = {
        "normal": {"status": "finished", "message": "", "agent_steps": 1234, "evaluation_score": 5.5},
        "obedient": {"status": "stopped", "message": ""},
        "polite": {"status": "stopped", "message": ""},
        "slow": {"status": "stopped", "message": ""},
        "usage": {"status": "failed", "message": "--parameter-servers 9: too many", "usage_error": True},
        "fails": {"status": "failed", "message": "server 0 died"},
        "lost": {"status": "failed", "message": "server 0 died", "lost": "server 0 died"},
        "late": {"status": "failed", "message": "server 0 died", "lost": "server 0 died"},
        "unsaved": {"status": "failed", "message": "server 0 died", "lost": "server 0 died"},
    }
    if behavior in ("lost", "late", "unsaved") and "--spent" in sys.argv:  # they were started again
        behavior = "normal"
    if behavior in ("late", "unsaved"):
        from ddrl.reporting.metrics import MetricsWriter

        writer = MetricsWriter(run_dir)
        writer.event("checkpoint" if behavior == "late" else "checkpoint_failed", "of update 7", 5.0)
        writer.event("phase", "the final evaluation", 5.0, phase=EVALUATING)
    if behavior == "crash":
        reason = "the reason of the crash"
        print(reason, file=sys.stderr, flush=True)
        wait_for_log(run_dir, reason)
        sys.exit(1)
    (run_dir / "result.json").write_text(json.dumps(results[behavior]))


if __name__ == "__main__":
    sys.exit(main())
