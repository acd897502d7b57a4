"""Ranks that go wrong by themselves: TEST_FAULT names how.

before_note: rank 1 is killed before it has left its note.
before_mpi: rank 1 dies before MPI has begun.
after_mpi: rank 1 is killed once all ranks have joined MPI, before it has roles.
no_mpi: rank 1 hangs before it comes to MPI.
first_word: the parameter server hangs before it listens; its own patience is short.
server: the parameter server raises at step 10.
late: worker 1 comes once the others have told of an update that they made without it.
silent_evaluator: the evaluator stops (SIGSTOP) instead of playing the last version; patience is short.
raising_evaluator: the evaluator raises when it is to play the first version.
raising_worker: the loop of worker 1 raises at version 20.
raising_chief: the chief raises when it is to write the first line of metrics.
raising_actor, raising_shard: in Ape-X, actor 0 or shard 0 raises when it reports and there is a checkpoint.
garbled: worker 1 sends the chief bytes that are no message at version 20.
hanging_evaluator: the evaluator's loop hangs at its first game; patience is short.
no_end: MPI_Finalize hangs in worker 1, and a thread of the parameter server never ends; patience is short.
lost_files: see tests/parallel/lost_files.py; patience is short.
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

from ddrl.placement.start import BEGUN, IN_JOB, leave_note, notes
from ddrl.roles.__main__ import main

FAULT = os.environ["TEST_FAULT"]
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
SERVER = 2
ACTOR, SHARD = 1, 3  # of Ape-X with two actors
LONG_SECONDS = 200.0
SHORT_SECONDS = 3.0


def sleep(*arguments: object) -> None:
    """Hangs."""
    time.sleep(LONG_SECONDS)


def put(owner: object, **values: object) -> None:
    """Has other values in the place of what a module or a class has by these names."""
    for name, value in values.items():
        assert hasattr(owner, name), f"{owner} has no {name} any more"
        setattr(owner, name, value)


def before_note() -> None:
    if RANK == 1:
        time.sleep(SHORT_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)


def before_mpi() -> None:
    if RANK == 1:
        leave_note(Path(sys.argv[1]), os.environ, BEGUN)
        os._exit(1)


def after_mpi() -> None:
    from ddrl.roles import main as ranks

    def dying(context, *arguments):
        joined = lambda: [note for note in notes(context.run_dir).values() if note.stage == IN_JOB]
        while len(joined()) < context.layout.size:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

    if RANK == 1:
        put(ranks, _work=dying)


def no_mpi() -> None:
    if RANK == 1:
        leave_note(Path(sys.argv[1]), os.environ, BEGUN)
        sleep()


def first_word() -> None:
    from ddrl.job import watchdog
    from ddrl.roles import main as ranks

    waits = watchdog.Waits
    if RANK == SERVER:
        put(watchdog, Waits=lambda limit, start, now: waits(SHORT_SECONDS, SHORT_SECONDS, now))
    put(ranks, ServerRole=sleep)


def server() -> None:
    from ddrl.exchange.parameter_server.server_shard import ServerShard

    commit = ServerShard._on_commit

    def failing(shard, header):
        if header.step == 10:
            raise ArithmeticError("the server's fault")
        return commit(shard, header)

    put(ServerShard, _on_commit=failing)


def late() -> None:
    if RANK != 1:
        return
    from ddrl.reporting.metrics import read_metrics
    from ddrl.roles import compute

    worker = compute.ComputeRoles.worker

    def comes_late(*arguments):
        while not any(line["kind"] == "train" and line["update"] > 0 for line in read_metrics(sys.argv[1])):
            time.sleep(0.1)
        return worker(*arguments)

    put(compute.ComputeRoles, worker=comes_late)


def silent_evaluator() -> None:
    from ddrl.job import watchdog
    from ddrl.roles import evaluator, evaluator_client

    put(evaluator_client, LAST_RESULT_SECONDS=SHORT_SECONDS)
    put(watchdog, LEAVE_SECONDS=SHORT_SECONDS)
    begin = evaluator.EvaluatorRole._begin

    def silent(role, parameters):
        if role._request["version"] == role.context.config.run.max_updates:
            os.kill(os.getpid(), signal.SIGSTOP)
        begin(role, parameters)

    put(evaluator.EvaluatorRole, _begin=silent)


def raising_evaluator() -> None:
    from ddrl.roles import evaluator

    def failing(role, parameters):
        raise ArithmeticError("the evaluator's fault")

    put(evaluator.EvaluatorRole, _begin=failing)


def raising_worker() -> None:
    from ddrl.roles import worker

    take = worker.WorkerRole._on_snapshot

    def failing(role, snapshot):
        if snapshot.version == 20:
            raise ArithmeticError("the worker's fault")
        take(role, snapshot)

    if RANK == 1:
        put(worker.WorkerRole, _on_snapshot=failing)


def raising_chief() -> None:
    from ddrl.roles import chief

    def failing(role, now):
        raise ArithmeticError("the chief's fault")

    put(chief.ChiefRole, _write_line=failing)


def raise_once_saved(role: type, words: str) -> None:
    """Has a role raise at its first report after a checkpoint, so that there is something to lose."""
    from ddrl.checkpoint import list_checkpoints

    report = role._report

    def failing(self, content):
        if list_checkpoints(self.context.run_dir):
            raise ArithmeticError(words)
        report(self, content)

    put(role, _report=failing)


def raising_actor() -> None:
    from ddrl.apex import actor

    if RANK == ACTOR:
        raise_once_saved(actor.ActorRole, "the actor's fault")


def raising_shard() -> None:
    from ddrl.apex import replay_shard

    if RANK == SHARD:
        raise_once_saved(replay_shard.ReplayShardRole, "the shard's fault")


def garbled() -> None:
    import numpy as np

    from ddrl.exchange.messages import Kind
    from ddrl.roles import worker

    take = worker.WorkerRole._on_snapshot

    def garbling(role, snapshot):
        if snapshot.version == 20:
            transport = role.transport
            transport.comm.Send(np.full(transport.format.nbytes, 200, np.uint8), 0, Kind.BLOB)
        take(role, snapshot)

    if RANK == 1:
        put(worker.WorkerRole, _on_snapshot=garbling)


def hanging_evaluator() -> None:
    from ddrl.job import watchdog
    from ddrl.roles import evaluator

    put(watchdog, LOOP_SECONDS=2 * SHORT_SECONDS)
    put(evaluator.EvaluatorRole, _begin=sleep)


def no_end() -> None:
    from ddrl.exchange import mpi

    put(mpi, FINALIZE_SECONDS=SHORT_SECONDS)
    if RANK == 1:
        put(mpi, _finalize=sleep)
    elif RANK == SERVER:
        threading.Thread(target=sleep).start()


def files() -> None:
    from ddrl.job import watchdog

    put(watchdog, FILES_SECONDS=SHORT_SECONDS, LOOP_SECONDS=3 * SHORT_SECONDS)
    lost_files.arm(Path(sys.argv[1]))


FAULTS = {
    "before_note": before_note, "before_mpi": before_mpi, "no_mpi": no_mpi, "first_word": first_word, "server": server,
    "late": late, "silent_evaluator": silent_evaluator, "hanging_evaluator": hanging_evaluator, "lost_files": files,
    "after_mpi": after_mpi, "no_end": no_end, "raising_evaluator": raising_evaluator, "raising_worker": raising_worker,
    "raising_chief": raising_chief, "raising_actor": raising_actor, "raising_shard": raising_shard, "garbled": garbled,
}  # fmt: skip

if __name__ == "__main__":
    light.install()
    FAULTS[FAULT]()
    sys.exit(main())
