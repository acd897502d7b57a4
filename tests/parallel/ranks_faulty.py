"""Ranks that go wrong by themselves: TEST_FAULT names how.

before_note: rank 1 is killed before it has left its note.
before_mpi: rank 1 dies before MPI has begun.
no_mpi: rank 1 hangs before it comes to MPI.
first_word: the parameter server hangs before it listens; its own patience is short.
server: the parameter server raises at step 10.
late: worker 1 comes 15 seconds after the others.
silent_evaluator: the evaluator stops (SIGSTOP) instead of playing the last version; patience is short.
hanging_evaluator: the evaluator's loop hangs at its first game; patience is short.
no_end: MPI_Finalize hangs in worker 1, and a thread of the parameter server never ends; patience is short.
lost_files: see tests/parallel/lost_files.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import light
import lost_files

from ddrl.placement.start import BEGUN, leave_note
from ddrl.roles.__main__ import main

FAULT = os.environ["TEST_FAULT"]
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
SERVER = 2
LATE_SECONDS = 15.0
LONG_SECONDS = 200.0
SHORT_SECONDS = 3.0


def sleep(*arguments: object) -> None:
    """Hangs."""
    time.sleep(LONG_SECONDS)


def before_note() -> None:
    if RANK == 1:
        time.sleep(SHORT_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)


def before_mpi() -> None:
    if RANK == 1:
        leave_note(Path(sys.argv[1]), os.environ, BEGUN)
        os._exit(1)


def no_mpi() -> None:
    if RANK == 1:
        leave_note(Path(sys.argv[1]), os.environ, BEGUN)
        sleep()


def first_word() -> None:
    from ddrl.job import watchdog
    from ddrl.roles import main as ranks

    waits = watchdog.Waits
    if RANK == SERVER:
        watchdog.Waits = lambda limit, start, now: waits(SHORT_SECONDS, SHORT_SECONDS, now)
    ranks.ServerRole = sleep


def server() -> None:
    from ddrl.exchange.parameter_server.server_shard import ServerShard

    commit = ServerShard._on_commit

    def failing(shard, header):
        if header.step == 10:
            raise ArithmeticError("the server's fault")
        return commit(shard, header)

    ServerShard._on_commit = failing


def late() -> None:
    if RANK != 1:
        return
    from ddrl.roles import compute

    worker = compute.ComputeRoles.worker

    def comes_late(*arguments):
        time.sleep(LATE_SECONDS)
        return worker(*arguments)

    compute.ComputeRoles.worker = comes_late


def silent_evaluator() -> None:
    from ddrl.job import watchdog
    from ddrl.roles import chief, evaluator

    chief.LAST_RESULT_SECONDS = watchdog.LEAVE_SECONDS = SHORT_SECONDS
    begin = evaluator.EvaluatorRole._begin

    def silent(role, version, parameters):
        if version == role.context.config.run.max_updates:
            os.kill(os.getpid(), signal.SIGSTOP)
        begin(role, version, parameters)

    evaluator.EvaluatorRole._begin = silent


def hanging_evaluator() -> None:
    from ddrl.job import watchdog
    from ddrl.roles import evaluator

    watchdog.LOOP_SECONDS = 2 * SHORT_SECONDS
    evaluator.EvaluatorRole._begin = sleep


def no_end() -> None:
    from ddrl.exchange import mpi

    mpi.FINALIZE_SECONDS = SHORT_SECONDS
    if RANK == 1:
        mpi._finalize = sleep
    elif RANK == SERVER:
        threading.Thread(target=sleep).start()


def files() -> None:
    from ddrl.job import watchdog

    watchdog.FILES_SECONDS = SHORT_SECONDS
    lost_files.arm(Path(sys.argv[1]))


FAULTS = {
    "before_note": before_note, "before_mpi": before_mpi, "no_mpi": no_mpi, "first_word": first_word, "server": server,
    "late": late, "silent_evaluator": silent_evaluator, "hanging_evaluator": hanging_evaluator, "lost_files": files,
    "no_end": no_end,
}  # fmt: skip

if __name__ == "__main__":
    light.install()
    FAULTS[FAULT]()
    sys.exit(main())
