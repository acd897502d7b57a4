"""`python -m ddrl.bench.actor_ranks JSON`: one rank of an Ape-X with emulated actors, under mpirun.

Rank 0 prints what it measured: an emulated learner, or the real one, which has TensorFlow.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from pathlib import Path
from typing import Any

from mpi4py import MPI

from cluster.roles import assign_roles
from ddrl.bench.emulated_actors import EmulatedChild, EmulatedLearner, config_of, read_segments
from ddrl.errors import in_one_line
from ddrl.exchange.mpi import MpiTransport
from ddrl.exchange.transport import Waiter
from ddrl.floating_point import flush_denormals
from ddrl.roles.actor import ActorRole
from ddrl.roles.job import Cast, Setting, run_roles
from ddrl.roles.replay_shard import ReplayShardRole


def main() -> None:
    """Casts this rank, and runs it to the end."""
    flush_denormals()
    options = json.loads(sys.argv[1])
    comm = MPI.COMM_WORLD
    config = config_of(**options["config"])
    assignments = assign_roles(1, 0, actors=config.apex.actors, replay_shards=config.apex.replay_shards)
    mine = assignments[comm.Get_rank()]
    cast = Cast.from_assignments(assignments).with_hosted_servers(mine.rank)
    setting = Setting(config, Path(options["run_dir"]), cast)
    transport = MpiTransport(comm, 1)
    result = None
    if mine.role == "actor":
        run_roles([_actor(setting, transport, mine.index, options)], transport, _patient_waiter())
    elif mine.role == "replay_shard":
        run_roles([ReplayShardRole(setting, transport, mine.index)], transport, Waiter())
    elif "learner" in options:
        from ddrl.bench.learner_rank import run_learner

        result = run_learner(setting, transport, mine._replace(cores=options["cores"]), **options["learner"])
    else:
        learner = EmulatedLearner(setting, transport, **options["emulated_learner"])
        run_roles([learner], transport, Waiter())
        result = {"failed": learner.events[0]} if learner.events else learner.summary()
    transport.flush(10.0)
    comm.Barrier()
    transport.close()
    if result is not None:
        print("RESULT " + json.dumps(result), flush=True)


def _actor(setting: Setting, transport: MpiTransport, index: int, options: dict[str, Any]) -> ActorRole:
    segments, seconds = read_segments(Path(options["segments"])), options["step_ms"] / 1000.0
    feed = options.get("feed_seconds", math.inf)
    return ActorRole(
        setting, transport, index, lambda run_id: EmulatedChild(setting.config, index, run_id, seconds, segments, feed)
    )


def _patient_waiter() -> Waiter:
    """Looks every 15 milliseconds: an actor has a core of its own in reality, and here 64 of them share a few."""
    return Waiter(yield_seconds=0.0, shortest_sleep=0.015, longest_sleep=0.015, idle_sleep=0.015)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        traceback.print_exc()
        print("RESULT " + json.dumps({"failed": in_one_line(error)}), flush=True)
        MPI.COMM_WORLD.Abort(1)  # the other ranks would wait without end
