"""A run as a job of Slurm: the options that describe the job, and its script."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import tyro

from cluster.topology import Seat
from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.memory import memory_of
from ddrl.options import early_options
from ddrl.options.game_settings import tried_game
from ddrl.placement.ranks import place_ranks
from ddrl.slurm.script import common, has_memory, minutes_for, output_in, script_of, warning_seconds
from ddrl.slurm.site import Site

LEAST_MEGABYTES = 2000  # for a core, as in the scripts of slurm/
BYTES_PER_MEGABYTE = 1e6
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


@dataclasses.dataclass(frozen=True)
class JobArguments:
    """Submit a run as a job of Slurm. All other options are those of `ddrl train`, which reads and checks them before
    the job is submitted. Without --workers, all ranks that other roles do not need are workers.

      ddrl submit train ppo --game pong --parameter-servers 4 --nodes 2 --ranks-per-node 16 --minutes 60
    """

    nodes: int | None = None
    """Nodes of the job (None: as many as Slurm needs for its ranks)."""
    ranks_per_node: int | None = None
    """Ranks on each node (None: as many as the settings need, evenly)."""
    cpus_per_rank: int = 1
    """Processors of each rank."""
    gpus_per_node: int = 0
    """GPUs of each node, one for each worker."""
    time: str = ""
    """Time limit of the job, as Slurm writes it: 90 (minutes), 04:00:00, 1-12 (default: enough for --minutes, or
    the limit of the partition with --minutes 0). When it is up, the run continues in a new job until its budget, which
    may be longer, is used up."""
    site: str = ""
    """Site file (default: $DDRL_SITE, slurm/site.conf of a clone, or ~/.config/ddrl/site.conf)."""
    sbatch_options: str = ""
    """More options of sbatch, in one word: --sbatch-options="--partition=gpu --constraint=avx512"."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the script, and submit nothing."""

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node", "cpus_per_rank"):
            if getattr(self, name) is not None:
                checks.between(self, 1, 1_000_000, name)
        checks.between(self, 0, 1_000, "gpus_per_node")
        if self.time and not TIME.fullmatch(self.time):
            checks.refuse(self, "time", "write it as Slurm does: 90 (minutes), 04:00:00, or 1-12 (a day and a half)")

    @property
    def seconds(self) -> int | None:
        """Time limit of the job in seconds; None if it is not given."""
        match = TIME.fullmatch(self.time)
        if match is None:
            return None
        days, first, second, third = (int(part or 0) for part in match.groups())
        has_hours = match["days"] is not None or match["third"] is not None
        hours, minutes, seconds = (first, second, third) if has_hours else (0, first, second)
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    @property
    def ranks(self) -> int | None:
        """Number of ranks of the job; None unless nodes and ranks per node are given."""
        return self.nodes * self.ranks_per_node if self.nodes and self.ranks_per_node else None


class SlurmJob(NamedTuple):
    """A run as a job.

    Attributes:
        arguments: the options that describe the job.
        config: settings of the whole run.
        words: options of `ddrl train` for every start of the job.
        resumed: directory of the run that it goes on with; None for a new run.
        trained: minutes that the run has trained.
        site: the site file.
        sbatch_words: options of sbatch that the user gives.
        command: the command as it was typed, for a comment in the script.
        directory: where the run is or will be; an absolute path.
    """

    arguments: JobArguments
    config: TrainConfig
    words: list[str]
    resumed: Path | None
    trained: float
    site: Site
    sbatch_words: list[str]
    command: str
    directory: Path

    def script(self) -> str:
        """The text of the script.

        Raises:
            UsageError: sbatch cannot take an option, or Slurm cannot write to the directory.
        """
        return script_of(self._options(), self._body(), self.site, self.command, self.sbatch_words)

    def _options(self) -> list[str]:
        """The options of sbatch for the job."""
        config, job = self.config, self.arguments
        nodes = 1 if config.exchange.kind.one_host else job.nodes
        per_node = job.ranks_per_node or (math.ceil(config.ranks / nodes) if nodes else None)
        name = f"{config.title}-{config.environment.game.rpartition('/')[2]}"
        wanted = [f"--job-name={re.sub(r'[^a-z0-9]+', '-', name.lower())}"]
        wanted += [f"--nodes={nodes}"] * bool(nodes) + [f"--ntasks={config.ranks}"]
        wanted += [f"--ntasks-per-node={per_node}"] * bool(per_node) + [f"--cpus-per-task={job.cpus_per_rank}"]
        wanted += [f"--gpus-per-node={job.gpus_per_node}"] * bool(job.gpus_per_node)
        if not has_memory(self.sbatch_words, self.site):
            wanted.append(f"--mem-per-cpu={megabytes_per_cpu(config, job.cpus_per_rank)}M")
        if config.run.minutes and not job.time and "SBATCH_TIMELIMIT" not in self.site.variables:
            wanted.append(minutes_for(config.run.minutes, warning_seconds(config), self.trained))
        return [*wanted, output_in(self.directory, "slurm-%j.out"), *common(warning_seconds(config))]

    def _body(self) -> list[str]:
        """The lines of the script that train."""
        peek = early_options.Parser(prog="ddrl submit train")  # --resume-or-start and --run-dir stand for these
        for name in ("--resume", "--run-dir"):
            peek.add_argument(name)
        peek.add_argument("--resume-or-start", action="store_true")
        _, left = peek.parse_known_args(self.words)
        quoted = " ".join(map(shlex.quote, left))
        return [
            f"ALGORITHM= REQUEUE=yes RESTARTS={self.config.run.max_restarts}",
            "check_nodes",
            f"train {shlex.quote(str(self.directory))} {self.config.ranks} {quoted}".rstrip(),
        ]


def megabytes_per_cpu(config: TrainConfig, cpus_per_rank: int) -> int:
    """Megabytes of memory for each processor, enough for the largest rank."""
    assignments = place_ranks(config, [Seat()] * config.ranks)
    most = max(memory_of(config, tried_game(config.environment), assignments)) / BYTES_PER_MEGABYTE
    return max(LEAST_MEGABYTES, math.ceil(most / cpus_per_rank))
