"""The first messages between the ranks of a job. Where they do not arrive, every machine says so, and the job ends.

MPI starts over the connections of its launcher. Between machines of one name, or over a wrong network, it starts, too,
and then waits without end for its own messages.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from ddrl.wording import counted

SHARE = 1 / 3  # of --start-seconds, for the first messages
SPEAKING_SECONDS = 2.0  # after which what other machines have said is there
INTERFACE = "OMPI_MCA_btl_tcp_if_include"
FIRST_ON_MACHINE = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""0 for one rank of each machine, by the launcher: Open MPI's mpirun, that of MPICH and Intel MPI, srun."""
SILENCE = "start `ddrl doctor` as this job was started, with the same options: it looks for the cause"


@contextlib.contextmanager
def bounded_contact(
    rank: int, size: int, start_seconds: float, environ: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """A context for the first messages between all ranks. If they take too long, this process speaks, and exits.

    It is entered when MPI has started.

    Args:
        rank: of this process, among `size`.
        start_seconds: that ranks have to begin, of which messages have a share.
        environ: variables of this rank.
    """
    seconds = start_seconds * SHARE if _began_together() else start_seconds
    timer = threading.Timer(seconds, _give_up, (rank, size, seconds, environ))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _began_together() -> bool:
    """Whether MPI, which has started here, has started on all ranks: then none still imports or reads anything.

    Open MPI waits for all ranks at the end of its start (seen with 5.0.11). Of others we do not know that.
    """
    from mpi4py import MPI

    return bool(MPI.get_vendor()[0] == "Open MPI")


def _give_up(rank: int, size: int, seconds: float, environ: Mapping[str, str]) -> None:
    """Rank 0 speaks last, and does not wait for the others, which may be unable to speak."""
    try:
        first = {environ[name] for name in FIRST_ON_MACHINE if name in environ}
        if first <= {"0"}:
            _say(f"rank {rank}, the first on {socket.gethostname()}{_interfaces()}, gets no messages")
        time.sleep(SPEAKING_SECONDS)
        if rank == 0:
            _say(_remedy(size, seconds, environ))
        else:
            time.sleep(SPEAKING_SECONDS)
    finally:
        os._exit(1)  # whatever fails before: nothing else ends the wait for messages


def _interfaces() -> str:
    """The network interfaces of this machine, in brackets; empty if the system does not say."""
    try:
        names = ", ".join(name for _, name in socket.if_nameindex() if name != "lo")
    except OSError:
        return ""
    return f" (network interfaces: {names or 'none'})"


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error is a broken pipe, full, or closed
        print(f"ddrl: {text}", file=sys.stderr, flush=True)


def _remedy(size: int, seconds: float, environ: Mapping[str, str]) -> str:
    given = environ.get(INTERFACE)
    setting = f"is {given}" if given else "is not set"
    return (
        f"MPI has started {counted(size, 'rank')}, but their messages did not arrive within {round(seconds, 1):g} s: "
        "if the lines above show several machines with one name, give each a name of its own (hostnamectl set-hostname "
        "NAME); if MPI took a wrong network, such as Docker's bridge, whose address is the same on every machine, name "
        f"the right one, such as 192.168.1.0/24 ({INTERFACE} {setting}; it is INTERFACE in a site file); if the "
        f"network is only slow, raise --start-seconds; {SILENCE}"
    )
