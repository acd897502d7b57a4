"""The layout of a job, which has its processes by role, and the context that every role gets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from cluster.roles import Assignment
from ddrl.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class JobLayout:
    """The processes of a job, by role. A process is named by its MPI rank at the start.

    Attributes:
        chief: process of the chief, which is worker 0's unless the chief is dedicated.
        workers: worker id -> process.
        servers: process of each parameter server, by shard index; if every worker's process hosts a server, only the
            process of the one that this process talks to.
        evaluator: process of the evaluator, or None.
        size: number of processes.
        actors: process of each actor of Ape-X, by the actor's index.
        replay_shards: process of each replay shard of Ape-X, by the shard's index.
        hosts: node of each process; empty in a job of a single process.
    """

    chief: int
    workers: dict[int, int]
    servers: tuple[int, ...]
    evaluator: int | None
    size: int
    actors: tuple[int, ...] = ()
    replay_shards: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()

    @classmethod
    def from_assignments(cls, assignments: tuple[Assignment, ...]) -> JobLayout:
        """The layout of a job whose ranks have these assignments."""
        return cls(
            chief=next(a.rank for a in assignments if a.is_chief),
            workers={a.index: a.rank for a in assignments if a.role == "worker"},
            servers=tuple(a.rank for a in assignments if a.role == "parameter_server"),
            evaluator=next((a.rank for a in assignments if a.role == "evaluator"), None),
            size=len(assignments),
            actors=tuple(a.rank for a in assignments if a.role == "actor"),
            replay_shards=tuple(a.rank for a in assignments if a.role == "replay_shard"),
            hosts=tuple(a.host for a in assignments),
        )

    @classmethod
    def single_process(cls, evaluator: bool) -> JobLayout:
        """The layout of a job of one process, which hosts a server and perhaps an evaluator beside its worker."""
        return cls(chief=0, workers={0: 0}, servers=(1,), evaluator=2 if evaluator else None, size=1)

    def with_hosted_servers(self, process: int) -> JobLayout:
        """This layout as `process` sees it if every worker's process hosts a server.

        Its server is its own, if it is a worker's process; else it is the chief's.
        """
        own = process if process in self.workers.values() else self.chief
        return dataclasses.replace(self, servers=(own,))

    @property
    def hosts_servers(self) -> bool:
        """Whether workers' processes host the servers."""
        return not set(self.servers).isdisjoint(self.workers.values())

    def name(self, process: int) -> str:
        """The name of a process in messages: 'worker 2 (rank 3)', or with several nodes 'worker 2 (rank 3 on n2)'."""
        worker = "the learner" if self.actors else "worker {}"
        names = [worker.format(w) for w, p in self.workers.items() if p == process]
        names += [f"parameter server {s}" for s, p in enumerate(self.servers) if p == process and not names]
        names += [f"actor {i}" for i, p in enumerate(self.actors) if p == process]
        names += [f"replay shard {i}" for i, p in enumerate(self.replay_shards) if p == process]
        names += ["the evaluator"] if process == self.evaluator else []
        names = ["the chief"] if process == self.chief and not names else names
        chief = ", the chief" if process == self.chief and names != ["the chief"] else ""
        where = f" on {self.hosts[process]}" if len(set(self.hosts)) > 1 else ""
        return f"{names[0]}{chief} (rank {process}{where})"


@dataclasses.dataclass(frozen=True)
class JobContext:
    """The context that every role gets: the configuration, the run directory and the layout.

    Attributes:
        evaluates_only: whether training is done, and only the final evaluation is missing.
        spent_seconds: of the budget of minutes, before this start: they lie behind its checkpoint.
    """

    config: TrainConfig
    run_dir: Path
    layout: JobLayout
    evaluates_only: bool = False
    spent_seconds: float = 0.0
