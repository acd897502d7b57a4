"""One Slurm of eight nodes for all tests of this directory, and what submits the project's own scripts to it."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cluster.launch import find_mpirun
from tests.parallel.light import EVERYWHERE, NO_CURVE
from tests.parallel.support import forked_ddrl
from tests.slurm.testbed import Cluster, missing

ROOT = Path(__file__).parents[2]
VENV = Path(sys.executable).parents[1]
NODES = 8  # for two jobs of three, and others for what they lose
JOB_SECONDS = 250.0
SITE = """\
LAUNCHER={launcher} SRUN_MPI={mpi}
VENV={venv} RUNS={runs} LAUNCHER_SECONDS=60
load_modules() {{ export PATH={programs}:$PATH; }}
{site}
"""
QUICK = EVERYWHERE | NO_CURVE
DRAWING, LIGHT = (
    "export " + " ".join(f"{name}={value}" for name, value in variables.items()) for variables in (EVERYWHERE, QUICK)
)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """The cluster."""
    why = missing() or ("" if find_mpirun() else "no mpirun")
    if why:
        pytest.skip(f"no Slurm to test with ({why}; Debian: slurmctld slurmd slurm-client munge libpmix-dev)")
    with tempfile.TemporaryDirectory(prefix="ddrl-slurm-") as directory:  # short: sockets have short names
        cluster = Cluster(Path(directory) / "state", NODES, cpus=4)
        try:
            yield cluster.start()
        finally:
            cluster.stop()


class Job:
    """One submitted job.

    Attributes:
        runs: where its run directories are.
    """

    def __init__(self, slurm: Cluster, number: str, output: Path, runs: Path):
        self.slurm, self.number, self._output, self.runs = slurm, number, output, runs

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    @property
    def run(self) -> Path:
        """Its run directory."""
        return next(self.runs.glob(f"*-{self.number}"))

    def show(self, field: str) -> str:
        """A field of `scontrol show job`."""
        text = self.slurm.run("scontrol", "show", "job", "-o", self.number)
        return re.search(rf"\b{field}=(\S*)", text).group(1)

    def processes(self, **variables: str) -> Iterator[int]:
        """Its processes that have these variables."""
        return self.slurm.processes(SLURM_JOB_ID=self.number, **variables)

    def wait(self, seconds: float = JOB_SECONDS) -> tuple[str, str]:
        """State and exit code when it has left the queue; fails the test if it does not in time."""
        self.leave(seconds)
        return self.show("JobState"), self.show("ExitCode")

    def leave(self, seconds: float) -> None:
        """Waits until it has left the queue. Slurm forgets a job some minutes later, and then cannot show it."""
        self.wait_for(lambda: self.number not in self.slurm.run("squeue", "-h", "-o", "%F").split(), "end", seconds)

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = JOB_SECONDS) -> None:
        """Waits until something is so."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                pytest.fail(
                    f"no {what} of job {self.number} within {seconds:g} s:\n{self.output}\n{self.slurm.describe()}"
                )
            time.sleep(0.2)  # most conditions start one of Slurm's commands, which takes of the cores, too


@pytest.fixture(scope="module")
def submit(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Job]]:
    """submit(SCRIPT, SETTINGS, OPTION..., ...): as `submitted`, but light. The jobs end with the module's tests."""
    jobs: list[Job] = []
    directory = tmp_path_factory.mktemp("slurm")

    def submit(*arguments: str, **options: Any) -> Job:
        jobs.append(submitted(slurm, directory, *arguments, **{"light": True} | options))
        return jobs[-1]

    yield submit
    for job in jobs:
        slurm.run("scancel", "--quiet", job.number)
    for job in jobs:
        job.leave(JOB_SECONDS)


def submitted(
    slurm: Cluster,
    directory: Path,
    script: str,
    settings: str,
    *options: str,
    launcher: str = "mpirun",
    mpi: str = "pmix",
    site: str = "",
    edits: Mapping[str, str] = MappingProxyType({}),
    light: bool = False,
    curve: bool = False,
) -> Job:
    """A job of a script of slurm/ with other settings, a site.conf of its own, and `edits` of the rest.

    A `light` one has no TensorFlow, its ddrl starts at once, and it draws its `curve` only if asked to.
    """
    serial = len(list(directory.glob("*.conf")))
    conf, mine, runs = directory / f"{serial}.conf", directory / f"{serial}-{script}", directory / "runs"
    lines = [site, (DRAWING if curve else LIGHT) if light else ""]
    venv, programs = forked_ddrl() if light else VENV, VENV / "bin"
    site = SITE.format(launcher=launcher, mpi=mpi, venv=venv, programs=programs, runs=runs, site="\n".join(lines))
    conf.write_text(site)
    text = with_settings((ROOT / "slurm" / script).read_text(), settings)
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    mine.write_text(text)
    variables = {
        "DDRL_SITE": str(conf),
        "DDRL_SLURM": str(ROOT / "ddrl" / "slurm"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    output = directory / f"{serial}.out"
    number = slurm.run(
        "env",
        *(f"{name}={value}" for name, value in variables.items()),
        "sbatch",
        "--parsable",
        f"--chdir={ROOT}",
        f"--output={output}",
        "--mem-per-cpu=1",
        "--time=10",
        *options,
        str(mine),
    )
    return Job(slurm, number, output, runs)


def with_settings(script: str, settings: str) -> str:
    """A script with `settings` where those of its user are: between its options and its line of dashes."""
    options, rest = re.split(r"\n\n", script, maxsplit=1)
    _, line, commands = re.split(r"(# -{50,}\n)", rest)
    return f"{options}\n\n{settings}\n{line}{commands}"
