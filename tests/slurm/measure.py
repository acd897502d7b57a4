"""`python -m tests.slurm.measure`: how soon a job of four nodes trains, what the loss of a node costs, and a study of
scaling as an array.

Figures for docs/results/, from real jobs on the cluster of these tests. Prints lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.parallel.support import events, newest
from tests.slurm.conftest import Job, submitted
from tests.slurm.testbed import Cluster, missing

NODES = 4
SIX_RANKS = """\
SERVERS=2 REQUEUE=yes RESTARTS=1
OPTIONS=(--preset smoke --workers 4 --no-evaluator --minutes 0 --max-updates 3000 --checkpoint-every-updates 50)
"""
SIX = ("--nodes=4", "--ntasks=6", "--ntasks-per-node=2")
THREE_RANKS = SIX_RANKS.replace("SERVERS=2", "SERVERS=1").replace("--workers 4", "--workers 2")
STUDY = ("--quick", "--workers", "1", "2", "4", "--repeats", "3", "--mode", "strong")
THREE = ("--nodes=3", "--ntasks-per-node=1")


def start(slurm: Cluster, directory: Path, launcher: str) -> dict[str, object]:
    """Seconds from sbatch to the first update, and those of its phases on rank 0."""
    begin = time.time()
    job = submitted(slurm, directory, "train.sbatch", SIX_RANKS, *SIX, launcher=launcher)
    job.wait_for(lambda: list(job.runs.glob(f"*-{job.number}")) and events(job.run, "started"), "first update")
    seconds = time.time() - begin
    slurm.run("scancel", job.number)
    job.wait()
    (event,) = events(job.run, "started")
    return {
        "what": "start",
        "launcher": launcher,
        "sbatch_to_first_update_seconds": round(seconds, 1),
        "phases_of_rank_0": event["seconds"],
    }


def node_loss(slurm: Cluster, directory: Path, launcher: str) -> dict[str, object]:
    """Crashes the node of the last worker; what becomes of the job, and when it trains again."""
    job = submitted(slurm, directory, "train.sbatch", THREE_RANKS, *THREE, launcher=launcher)
    job.wait_for(lambda: list(job.runs.glob(f"*-{job.number}")) and events(job.run, "checkpoint"), "checkpoint")
    node = slurm.run("squeue", "-h", "-j", job.number, "-o", "%N")
    last = slurm.run("scontrol", "show", "hostnames", node).split()[-1]
    before, begin = newest(job.run).version, time.time()
    slurm.crash(last)
    seen: dict[str, float] = {}

    def again() -> bool:
        signs = {
            "worker_lost": bool(events(job.run, "worker_lost")),
            "new start": "starts again" in job.output,
            "not running": job.show("JobState") != "RUNNING",
        }
        for sign in (sign for sign, there in signs.items() if there):
            seen.setdefault(sign, round(time.time() - begin, 1))
        return len(events(job.run, "started")) > 1

    try:
        job.wait_for(again, "training again", 150.0)
        trains = round(time.time() - begin, 1)
    except BaseException as error:
        trains = f"not within 150 s: {str(error)[-400:]}"
    slurm.start_node(last)
    found = {
        "what": "node loss",
        "launcher": launcher,
        "seen_seconds": seen,
        "trains_again_seconds": trains,
        "update_before": before,
        "state": job.show("JobState"),
        "restarts": job.show("Restarts"),
    }
    slurm.run("scancel", job.number)
    return found | {"output": job.output[-1500:]}


def study(slurm: Cluster, directory: Path) -> dict[str, object]:
    """A study of scaling as an array, whose tasks have a node to themselves, and its report."""
    place = directory / "scaling"
    command = [sys.executable, "-m", "ddrl.cli", "study", "scaling", "--dir", str(place)]
    options = "--sbatch-options=--exclusive --mem-per-cpu=1 --time=10"

    def call(*more: str) -> str:
        return subprocess.run(
            [*command, *more], env=slurm.environment, capture_output=True, text=True, check=True, cwd=directory
        ).stdout

    begin = time.time()
    number = call(*STUDY, "--submit", options).split("job ")[1].split(":")[0]
    job = Job(slurm, number, place / "none", place)
    job.wait(600.0)
    ended = round(time.time() - begin, 1)
    call("--collect")
    results = json.loads((place / "results.json").read_text())
    return {
        "what": "study",
        "array": number,
        "seconds_until_the_last_task": ended,
        "seconds_until_the_report": round(time.time() - begin, 1),
        "table": results["tables"][0],
    }


def main() -> int:
    """Runs the jobs named on the command line (start, node, study), or all."""
    why = missing()
    if why:
        print(f"no Slurm here: {why}", file=sys.stderr)
        return 2
    wanted = sys.argv[1:] or ["start", "node", "study"]
    if "study" in wanted:
        with a_cluster(1) as (cluster, directory):
            print(json.dumps(study(cluster, directory)), flush=True)
    if wanted == ["study"]:
        return 0
    with a_cluster(NODES) as (cluster, directory):
        for name, measure in (("start", start), ("node", node_loss)):
            for launcher in ("mpirun", "srun") if name in wanted else ():
                place = directory / f"{name}-{launcher}"
                place.mkdir()
                print(json.dumps(measure(cluster, place, launcher)), flush=True)
    return 0


@contextlib.contextmanager
def a_cluster(nodes: int) -> Iterator[tuple[Cluster, Path]]:
    """A cluster, and a directory for its jobs."""
    with tempfile.TemporaryDirectory(prefix="ddrl-slurm-") as directory:
        cluster = Cluster(Path(directory) / "state", nodes, cpus=4)
        try:
            yield cluster.start(), Path(directory)
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
