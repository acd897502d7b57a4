"""Which rank has which role: a pure function of the sizes that were asked for."""

from __future__ import annotations

from typing import Literal, NamedTuple

Role = Literal["worker", "chief", "parameter_server", "evaluator"]


class Assignment(NamedTuple):
    """What one rank does.

    Attributes:
        rank: rank in the world that was started.
        role: worker (trains), chief (a dedicated one that only coordinates), parameter_server, evaluator.
        index: worker_id of a worker, shard index of a parameter server, 0 otherwise.
        is_chief: True for the one rank that coordinates; a worker unless the chief is dedicated.
    """

    rank: int
    role: Role
    index: int
    is_chief: bool = False


def assign_roles(
    workers: int, parameter_servers: int, dedicated_chief: bool = False, evaluator: bool = False
) -> tuple[Assignment, ...]:
    """One Assignment per rank: the chief is rank 0, then the other workers, the servers, the evaluator.

    One worker without servers is a single process, which evaluates in line: no rank of its own for that.

    Raises:
        ValueError: for sizes that make no job.
    """
    if workers < 1 or parameter_servers < 0:
        raise ValueError(f"{workers} workers and {parameter_servers} parameter servers make no job")
    if parameter_servers == 0:
        if workers > 1 or dedicated_chief:
            raise ValueError("without a parameter server there is one worker, which is its own chief")
        return (Assignment(0, "worker", 0, is_chief=True),)
    roles: list[tuple[Role, int, bool]] = [("chief", 0, True)] if dedicated_chief else []
    roles += [("worker", i, i == 0 and not dedicated_chief) for i in range(workers)]
    roles += [("parameter_server", i, False) for i in range(parameter_servers)]
    roles += [("evaluator", 0, False)] if evaluator else []
    return tuple(Assignment(rank, *role) for rank, role in enumerate(roles))
