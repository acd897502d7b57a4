"""`ddrl plan`: which rank would be where and do what, before anything runs. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.job import detect_job
from cluster.roles import COMPUTES, Assignment, gpus_of_node
from cluster.slurm import read_allocation
from cluster.topology import Seat, allotted, balanced, gather_seats, made_up, this_seat, usable_cores
from ddrl import checks
from ddrl.config import TrainConfig, validation
from ddrl.envs.base import GameFacts
from ddrl.errors import UsageError
from ddrl.exchange.optimizers import make_optimizer
from ddrl.memory import Needs, check_replay, check_rollouts, memory_of_rank, needs_of, parameters_served, replays_of
from ddrl.options import command_line, train_options
from ddrl.options.game_settings import tried_game
from ddrl.options.unread import unread
from ddrl.placement.ranks import groups_of, place_ranks, threads_for
from ddrl.placement.resources import check_machine, machine_warnings, this_machine
from ddrl.placement.world import settled_world
from ddrl.reporting.json_output import write_json_output
from ddrl.types import Machine
from ddrl.wording import counted

MOST_NODES, MOST_CORES = 100_000, 65_536
HERE = "this machine"  # as the source of a plan


@dataclasses.dataclass(frozen=True)
class PlanArguments:
    """Print how `ddrl train` with the same options would use the nodes: host, role, processors, GPU, threads,
    simulators, shard, and memory of every rank. Nothing is started.

      ddrl plan --preset ba3c-paper --nodes 16 --cpus-per-node 32
      srun --mpi=pmix ddrl plan --workers 12 --parameter-servers 3      # from the ranks themselves
    """

    nodes: int | None = None
    """Plan for this many equal nodes, which need not exist (None: for the ranks of this job, the nodes of this Slurm
    allocation, or this machine)."""
    cpus_per_node: int | None = None
    """Processors of each node (None: as many as here)."""
    gpus_per_node: int | None = None
    """GPUs of each node (None: none)."""
    ranks_per_node: int | None = None
    """Ranks on each node (None: as many as the settings need, evenly; in an allocation, its tasks)."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def __post_init__(self) -> None:
        limits = {"nodes": MOST_NODES, "cpus_per_node": MOST_CORES, "gpus_per_node": MOST_CORES,
                  "ranks_per_node": MOST_CORES}  # fmt: skip
        for name, most in limits.items():
            if getattr(self, name) is not None:
                checks.between(self, int(name != "gpus_per_node"), most, name)

    @property
    def made_up(self) -> bool:
        """Whether the options describe nodes in place of those that are here."""
        return (self.nodes, self.cpus_per_node, self.gpus_per_node) != (None, None, None)


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Runs `ddrl plan`; returns the exit status."""
    nodes, rest = command_line.read_known(PlanArguments, argv, "ddrl plan", others=True)
    own = [option.name for option in command_line.options_of(PlanArguments)]
    arguments = train_options.parse(rest, _machine(nodes), "ddrl plan", own)
    config = arguments.config
    try:
        seats, source = topology(config, nodes, environ)
    except ValueError as error:
        raise UsageError(str(error)) from error
    assignments = place_ranks(config, seats)
    job = detect_job(environ)
    if job is not None and job.rank > 0:
        return 0
    game = tried_game(config.environment)
    vain = unread(config, arguments.chosen, game.action_space)
    warnings = [*arguments.notes, *vain, *validation.warnings(config)]
    warnings += _doubts(config, game) if source == HERE else []
    needs = needs_of(config, game)
    warnings += warnings_of(seats, assignments, crowds=source != HERE)  # `_doubts` has that of this machine
    content = as_json(config, needs, source, seats, assignments, warnings)
    if nodes.json:
        write_json_output(nodes.json, content)
    else:
        _show(content)
    return 0


def _doubts(config: TrainConfig, game: GameFacts) -> list[str]:
    """Warnings that the run would be refused here, or would be slow. A plan can be made all the same."""
    here = this_machine()
    warnings = machine_warnings(config, here)
    try:
        check_machine(config, here)
        check_replay(config, game, replays_of(config), here.memory_bytes)
        check_rollouts(config, game, config.exchange.workers, here.memory_bytes)
    except UsageError as error:
        return [f"`ddrl train` refuses this here: {error}", *warnings]
    return warnings


def _machine(nodes: PlanArguments) -> Machine:
    here = this_machine()
    if not nodes.made_up:
        return here
    return here._replace(cores=(nodes.nodes or 1) * (nodes.cpus_per_node or here.cores), memory_bytes=1 << 62)


def topology(config: TrainConfig, nodes: PlanArguments, environ: Mapping[str, str]) -> tuple[tuple[Seat, ...], str]:
    """Where the ranks sit, and the source of that, in words.

    Args:
        config: settings of the run.
        nodes: the options about nodes, which come before everything else.
        environ: environment variables, which may be those of a job or a Slurm allocation.

    Raises:
        ValueError: the numbers make no job, or variables of Slurm cannot be read.
    """
    if nodes.made_up:
        number = nodes.nodes or 1
        per_node = [nodes.ranks_per_node] * number if nodes.ranks_per_node else balanced(config.ranks, number)
        cores = nodes.cpus_per_node or len(usable_cores())
        return made_up(per_node, cores, nodes.gpus_per_node or 0), "nodes as given"
    job = detect_job(environ)
    if job is not None and job.size == 1:
        return (this_seat(environ),), "this job"
    if job is not None:
        return gather_seats(settled_world(), environ), "this job"
    allocation = read_allocation(environ)
    if allocation is not None:
        per_node = [nodes.ranks_per_node] * len(allocation.nodes) if nodes.ranks_per_node else []
        return allotted(allocation, per_node), f"Slurm job {allocation.job_id}"
    seat = this_seat(environ)._replace(wish="")
    return (seat,) * (nodes.ranks_per_node or config.ranks), HERE


def ranks_as_json(config: TrainConfig, assignments: Sequence[Assignment], needs: Needs) -> list[dict[str, Any]]:
    """What every rank is and needs; sizes in bytes, of a shard without its optimizer slots.

    Args:
        config: settings of the run.
        assignments: one for each rank.
        needs: as `needs_of` gives them.
    """
    ranks = []
    for rank, shard in zip(assignments, parameters_served(config, assignments, needs.parameters)):
        threads = threads_for(config, rank.cores) if rank.role in COMPUTES else None
        simulates = rank.role == ("actor" if config.apex.actors else "worker")
        ranks.append(
            {
                "rank": rank.rank,
                "host": rank.host,
                "role": rank.role,
                "name": _name(rank),
                "index": rank.index,
                "is_chief": rank.is_chief,
                "cores": rank.cores,
                "gpu": rank.gpu,
                "threads": {"intra_op": threads.intra_op, "inter_op": threads.inter_op} if threads else None,
                "simulators": config.sampling.simulators if simulates else 0,
                "simulator_threads": threads.simulator * groups_of(config) if simulates and threads else 0,
                "shard_bytes": 4 * shard,
                "memory_bytes": memory_of_rank(config, rank, needs, shard),
            }
        )
    return ranks


def _name(rank: Assignment) -> str:
    """The role of a rank in words."""
    if rank.role in ("chief", "evaluator"):
        return rank.role
    role = {"parameter_server": "server", "replay_shard": "replay shard"}.get(rank.role, rank.role)
    return f"{role} {rank.index}" + (", chief" if rank.is_chief and rank.role == "worker" else "")


def warnings_of(seats: Sequence[Seat], assignments: Sequence[Assignment], crowds: bool) -> list[str]:
    """Warnings of a placement that works but wastes something: at most one of each kind for each node.

    Args:
        seats, assignments: one for each rank.
        crowds: warn of more workers than cores, too.
    """
    warnings = []
    for host in dict.fromkeys(seat.host for seat in seats):
        ranks = [rank for rank in assignments if rank.host == host]
        workers = sum(rank.role == "worker" for rank in ranks)
        cores = {core for seat in seats if seat.host == host for core in seat.cores}
        shared = {gpu for seat in seats if seat.host == host and not seat.own_gpus for gpu in seat.gpus}
        used = Counter(rank.gpu for rank in ranks if rank.gpu in shared)
        if crowds and cores and workers > len(cores):
            shared_cores = counted(len(cores), "core")
            warnings.append(f"{host}: {workers} workers share {shared_cores}; expect them to take turns")
        if max(used.values(), default=0) > 1:
            few = counted(len(shared), "GPU")
            warnings.append(f"{host}: {workers} workers share {few}: start one for each GPU")
        if len(shared) > len(used):
            idle = counted(len(shared) - len(used), "GPU")
            warnings.append(f"{host}: {idle} of {len(shared)} unused: start a worker for each GPU")
    return warnings


def as_json(
    config: TrainConfig,
    needs: Needs,
    source: str,
    seats: Sequence[Seat],
    assignments: Sequence[Assignment],
    warnings: list[str],
) -> dict[str, Any]:
    """The plan in JSON types. Sizes in bytes; `bytes_per_update` is what workers and servers send together.

    Args:
        config: settings of the run.
        needs: as `needs_of` gives them.
        source: where the nodes are known from, in words.
        seats, assignments: one for each rank.
        warnings: warnings for the user.
    """
    ranks, parameters = ranks_as_json(config, assignments, needs), needs.parameters
    memory: Counter[str] = Counter()  # by host
    for rank in ranks:
        memory[rank["host"]] += rank["memory_bytes"]
    slots = len(make_optimizer(config.optimizer, 1).slots)
    return {
        "source": source,
        "game": config.environment.game,
        "network": config.network.network,
        "ranks": ranks,
        "totals": {
            "nodes": len(memory),
            "ranks": len(ranks),
            "cores": len({(seat.host, core) for seat in seats for core in seat.cores}),
            "gpus": sum(gpus_of_node([seat for seat in seats if seat.host == host]) for host in memory),
            "gpus_used": _gpus_used(seats, assignments),
            "simulators": sum(rank["simulators"] for rank in ranks),
            "parameters": parameters,
            "effective_batch": config.effective_batch,
            "bytes_per_update": config.exchange.kind.bytes_per_update(config.exchange, parameters, slots),
            "memory_bytes": sum(memory.values()),
            "memory_bytes_of_fullest_node": max(memory.values()),
        },
        "warnings": warnings,
    }


def _gpus_used(seats: Sequence[Seat], assignments: Sequence[Assignment]) -> int:
    used = [(seats[rank.rank], rank) for rank in assignments if rank.gpu]
    own = sum(seat.own_gpus for seat, _ in used)
    return own + len({(rank.host, rank.gpu) for seat, rank in used if not seat.own_gpus})


def _show(content: dict[str, Any]) -> None:
    lines = [("rank", "host", "role", "cores", "GPU", "TensorFlow", "simulators", "shard", "memory")]
    for rank in content["ranks"]:
        threads, on = rank["threads"], counted(rank["simulator_threads"], "thread")
        lines.append(
            (
                str(rank["rank"]),
                rank["host"],
                rank["name"],
                str(rank["cores"]),
                rank["gpu"] or "-",
                f"{threads['intra_op']} x {threads['inter_op']} threads" if threads else "-",
                f"{rank['simulators']} on {on}" if rank["simulators"] else "-",
                f"{rank['shard_bytes'] / 1e6:.2f} MB" if rank["shard_bytes"] else "-",
                f"{rank['memory_bytes'] / 1e9:.1f} GB",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    print(f"{content['game']} on {content['source']}\n")
    for line in lines:
        print("  ".join(f"{text:{width}}" for text, width in zip(line, widths)).rstrip())
    total = content["totals"]
    print(
        f"\n{counted(total['ranks'], 'rank')} on {counted(total['nodes'], 'node')} with "
        f"{counted(total['cores'], 'core')} and {counted(total['gpus'], 'GPU')}, "
        f"{total['gpus_used']} of them used; {counted(total['simulators'], 'simulator')}\n"
        f"network {content['network']}: {total['parameters']:,} parameters; an update takes "
        f"{total['effective_batch']:,} data-points and moves {total['bytes_per_update'] / 1e6:.2f} MB\n"
        f"memory: about {total['memory_bytes'] / 1e9:.1f} GB, "
        f"{total['memory_bytes_of_fullest_node'] / 1e9:.1f} GB on the fullest node"
    )
    for warning in content["warnings"]:
        print(f"warning: {warning}")
