"""Gives this process its roles in a job, and runs them to the end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.roles import Assignment
from cluster.topology import Seat, gather_seats, ranks_per_core, this_seat
from ddrl.apex.actor import ActorRole
from ddrl.apex.child import acting_process
from ddrl.apex.replay_shard import ReplayShardRole
from ddrl.config import TrainConfig
from ddrl.errors import UsageError, in_one_line
from ddrl.exchange.local import LocalTransport
from ddrl.exchange.messages import Garbled
from ddrl.exchange.transport import Transport
from ddrl.floating_point import flush_denormals
from ddrl.job.exits import refuse_exits
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import Role, RoleLost, Topic, failure_of, json_blob, run_roles, stop_on_signals, waiter_with_alarm
from ddrl.job.watchdog import Watchdog
from ddrl.job.word import WordRole
from ddrl.lazy import import_tensorflow
from ddrl.named_runs import go_on
from ddrl.placement.ranks import expose_gpu, place_ranks
from ddrl.placement.start import AT_MPI, IN_JOB, MARGIN_SECONDS, bounded_start, leave_note
from ddrl.placement.world import settled_world
from ddrl.reporting.phases import phase_ended
from ddrl.roles.server import ServerRole
from ddrl.rundir import RESULT, write_json

EXIT_FAILED = 1
EXIT_USAGE = 2
USAGE_SECONDS = 5.0  # time for rank 0 to say what is wrong and to end the other ranks
ABORT_SECONDS = 10.0  # time for MPI_Abort, after which this process ends by itself
REVOKE_SECONDS = 2.0  # time for the other ranks to see that the communicator is revoked, and to leave
HEARD_SECONDS = 0.5  # time for the chief to hear why a rank dies: once it sees the death, it receives nothing from it


def run(
    config: TrainConfig,
    run_dir: Path,
    resume: bool,
    at_end: Callable[[], None] = lambda: None,
    evaluates_only: bool = False,
    spent_seconds: float = 0.0,
) -> int:
    """Runs this process' part of a job; returns the exit status.

    A job of a single process uses no MPI. Otherwise MPI's world must have as many ranks as the configuration needs. A
    failure of one rank ends all of them, and the reason is written to the run's result.json.

    Args:
        config: settings of the run.
        run_dir: the run directory.
        resume: whether to start from the newest checkpoint, if there is one.
        at_end: called at the end of a job without failure, when the other ranks need nothing more from this one.
        evaluates_only, spent_seconds: see `JobContext`.

    Raises:
        UsageError: the user has to change something. It is raised in a single process only: a rank of a job prints it,
            and aborts the job.
    """
    flush_denormals()
    stop_on_signals(run_dir)
    part = _run_single if config.single_process else _run_rank
    try:
        return part(config, run_dir, resume, at_end, evaluates_only, spent_seconds)
    except UsageError as error:
        write_failure(run_dir, str(error), usage_error=True)
        if config.single_process:
            raise
        print(f"ddrl: {error}", file=sys.stderr)
        return abort(EXIT_USAGE)
    except RoleLost as error:
        write_failure(run_dir, f"{error} (see log.txt)", lost=str(error))
        return abort(EXIT_FAILED)
    except Garbled as error:
        write_failure(run_dir, str(error))
        print(f"ddrl: {error}", file=sys.stderr)
        return abort(EXIT_FAILED)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # an environment may raise any of them
        _write_mistake(run_dir, error)
        return EXIT_FAILED if config.single_process else abort(EXIT_FAILED)


def _run_single(
    config: TrainConfig,
    run_dir: Path,
    resume: bool,
    at_end: Callable[[], None],
    evaluates_only: bool,
    spent_seconds: float,
) -> int:
    (assignment,) = place_ranks(config, (this_seat(os.environ),))
    expose_gpu(assignment.gpu)
    import_tensorflow()
    from ddrl.roles.compute import ComputeRoles

    refuse_exits()
    layout = JobLayout.single_process(config.evaluation.evaluator)
    context = JobContext(config, run_dir, layout, evaluates_only, spent_seconds)
    waiter, wake = waiter_with_alarm()
    transport = LocalTransport(0)
    server_port = transport.port(1)
    transport.host(server_port, ServerRole(context, server_port, 0))
    phase_ended("tensorflow")
    factory = ComputeRoles(context, assignment)
    if layout.evaluator is not None:
        port = transport.port(layout.evaluator)
        transport.host(port, factory.evaluator(port))
    watchdog = Watchdog(context, 0, leave_now)
    worker = factory.worker(transport, 0, wake, watchdog.working)
    chief = factory.chief(transport, resume)
    phase_ended("environments and network")
    watchdog.start()
    run_roles([chief, worker], transport, waiter, watchdog.note)
    watchdog.left()  # what is made of a run that has ended may take longer than any wait in it
    at_end()
    return _status(chief)


def _run_rank(
    config: TrainConfig,
    run_dir: Path,
    resume: bool,
    at_end: Callable[[], None],
    evaluates_only: bool,
    spent_seconds: float,
) -> int:
    leave_note(run_dir, os.environ, AT_MPI)
    patience = config.run.start_seconds + MARGIN_SECONDS
    with bounded_start(patience):
        comm = settled_world()
    phase_ended("mpi")
    with bounded_start(patience):
        seats = _seats(comm)
    assignments = _assign(config, seats, comm.Get_rank())
    layout = JobLayout.from_assignments(assignments)
    leave_note(run_dir, os.environ, IN_JOB, layout.name(comm.Get_rank()))
    refuse_exits(lambda status: die())
    if not config.exchange.servers:
        layout = layout.with_hosted_servers(comm.Get_rank())
    context = JobContext(config, run_dir, layout, evaluates_only, spent_seconds)
    return _work(context, comm, seats, assignments, resume, at_end)


def _work(
    context: JobContext,
    comm: Any,
    seats: tuple[Seat, ...],
    assignments: tuple[Assignment, ...],
    resume: bool,
    at_end: Callable[[], None],
) -> int:
    """Runs the roles of this rank, which has joined the job, to their ends; returns the exit status."""
    from ddrl.exchange.mpi import JobRevoked, MpiTransport, leave

    exchange, run_dir = context.config.exchange, context.run_dir
    assignment = assignments[comm.Get_rank()]
    survive = exchange.on_worker_loss == "survive" and ulfm_works()
    alone = survive and assignment.role in ("evaluator", "actor", "replay_shard")
    watchdog = Watchdog(context, comm.Get_rank(), abort, go=die if alone else None)
    watchdog.start()
    transport = MpiTransport(comm, exchange.workers, survive=survive)
    waiter, wake = waiter_with_alarm(ranks_per_core(seats, comm.Get_rank()))
    try:
        roles = _roles_of_rank(context, transport, assignments, resume, wake, watchdog.working)
        if exchange.asynchronous and assignment.role in ("worker", "chief", "parameter_server"):
            roles.append(WordRole(context, transport))
        run_roles(roles, transport, waiter, watchdog.note)
    except JobRevoked:
        time.sleep(1.0)  # time for the rank that saw the death first to say what happened
        leave_now(EXIT_FAILED)
    except RoleLost as error:
        return _end_without(error, run_dir, transport)
    except (UsageError, Garbled) as error:
        if survive:  # with ULFM, MPI_Abort ends no other rank
            write_failure(run_dir, str(error), usage_error=isinstance(error, UsageError))
            _call_off(transport)
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if not survive:
            raise
        _die_of(error, context, comm.Get_rank(), transport)
    watchdog.leaving()
    transport.flush(10.0)
    transport.close()
    status = max((_status(role) for role in roles), default=0)
    return leave(comm, status, survive, met=watchdog.left, at_end=at_end)


def _call_off(transport: Any) -> None:
    """Revokes the communicator of an MpiTransport, so that all other ranks leave; does so only with ULFM."""
    transport.revoke()
    time.sleep(REVOKE_SECONDS)


def _end_without(error: RoleLost, run_dir: Path, transport: Any) -> int:
    """Ends the job because a rank that it needs is lost; returns the exit status."""
    message = f"{error}; {go_on(run_dir)}"
    write_failure(run_dir, message, lost=str(error))
    print(message, flush=True)
    _call_off(transport)
    return abort(EXIT_FAILED)  # ends ranks that hang, and so do not see that the communicator is revoked


def _die_of(error: BaseException, context: JobContext, rank: int, transport: Transport) -> None:
    """Ends this process because of an exception in one of its roles.

    With ULFM, MPI_Abort ends no other rank, and the other ranks do not notice a process that exits. So this one tells
    the chief, which saves a checkpoint, and then kills itself, which the others notice.
    """
    _write_mistake(context.run_dir, error)
    if rank != context.layout.chief:
        transport.send([json_blob(context.layout.chief, Topic.FAILED, failure_of(error))])
        transport.flush(10.0)
        time.sleep(HEARD_SECONDS)
    die()


def _write_mistake(run_dir: Path, error: BaseException) -> None:
    """Writes an exception to result.json, and its traceback to log.txt; to be called while it is handled."""
    write_failure(run_dir, f"{in_one_line(error)} (see log.txt)")
    traceback.print_exc()


def _seats(comm: Any) -> tuple[Seat, ...]:
    from mpi4py import MPI

    try:
        return gather_seats(comm)
    except (MPI.Exception, ValueError) as error:  # after a death, a collective operation may return anything
        raise RoleLost("a rank died while the job began") from error


def _assign(config: TrainConfig, seats: tuple[Seat, ...], rank: int) -> tuple[Assignment, ...]:
    """The assignments of all ranks, which every rank finds alike.

    If the settings do not fit the ranks, all of them find the same mistake. The other ranks wait, so that rank 0 alone
    reports it, and ends the job.
    """
    try:
        return place_ranks(config, seats)
    except UsageError:
        if rank > 0:
            time.sleep(USAGE_SECONDS)
        raise


def ulfm_works() -> bool:
    """Whether MPI reports dead ranks instead of ending the job, as it does under `mpirun --with-ft ulfm`."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"


def abort(status: int) -> int:
    """Ends all ranks by MPI_Abort; MPI_Finalize would wait for the others, which wait for messages of this rank."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    threading.Timer(ABORT_SECONDS, leave_now, (status,)).start()  # in case MPI_Abort hangs, too
    MPI.COMM_WORLD.Abort(status)
    return status


def leave_now(status: int) -> None:
    """Ends this process at once, without MPI_Finalize, which can hang after a death that ends the job."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def die() -> None:
    """Kills this process, so that Open MPI reports its death to the others; it does not report a process that exits."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _roles_of_rank(
    context: JobContext,
    transport: Transport,
    assignments: tuple[Assignment, ...],
    resume: bool,
    wake: Callable[[], None],
    working: Callable[[], None],
) -> list[Role]:
    assignment = assignments[transport.rank]
    if assignment.role == "parameter_server":
        return [ServerRole(context, transport, assignment.index)]
    if assignment.role == "replay_shard":
        return [ReplayShardRole(context, transport, assignment.index, working)]
    if assignment.role == "actor":
        return [ActorRole(context, transport, assignment.index, acting_process(context.run_dir, assignment))]
    expose_gpu(assignment.gpu)
    import_tensorflow()
    from ddrl.roles.compute import ComputeRoles

    phase_ended("tensorflow")
    workers_here = sum(other.role == "worker" and other.host == assignment.host for other in assignments)
    factory = ComputeRoles(context, assignment, workers_here)
    if assignment.role == "evaluator":
        return [factory.evaluator(transport)]
    roles: list[Role] = []
    if assignment.role == "worker":
        roles.append(factory.worker(transport, assignment.index, wake, working))
        if context.layout.hosts_servers:
            network = factory.network
            roles.append(ServerRole(context, transport, assignment.index, network.size, network.parameter_shapes))
    if assignment.is_chief:
        roles.insert(0, factory.chief(transport, resume))
    phase_ended("environments and network")
    return roles


def _status(role: Role) -> int:
    result = getattr(role, "result", {})
    return EXIT_FAILED if result.get("status") == "failed" else 0


def write_failure(run_dir: Path, message: str, usage_error: bool = False, lost: str = "") -> None:
    """Writes result.json with the reason of a failure, unless it exists already or the disk cannot be written.

    Args:
        run_dir: the run directory.
        message: why the job failed.
        usage_error: whether the user has to change something.
        lost: which process died, if the job can be started again from the last checkpoint; else empty.
    """
    content = {"status": "failed", "message": message} | ({"usage_error": message} if usage_error else {})
    content |= {"lost": lost} if lost else {}
    with contextlib.suppress(OSError):
        if not (run_dir / RESULT).exists():
            write_json(run_dir / RESULT, content)
