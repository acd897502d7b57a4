"""A rank's process whose work a fork does, see tests/parallel/forks.py: ranks_forked.py PROGRAM ARGUMENT..."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

FORKS = "TEST_FORKS"  # names the socket
MODULE = "ddrl.roles"  # of real ranks
COMMAND = "ddrl"  # what users type
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def command(program: str = MODULE) -> tuple[str, ...]:
    """Starts a program of this directory, the module of real ranks, or ddrl itself in a fork; arguments follow."""
    return sys.executable, "-IS", __file__, program


def session_members(session: int) -> list[int]:
    """Stands in for the launcher's, which looks for its ranks in mpirun's session: forks are in another one."""
    from ddrl.launch import processes

    return [pid for pid, _ in processes._living()]


def be_forked() -> int:
    """Has a fork do the work, and ends as it does."""
    request = {
        "argv": sys.argv[1:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "cores": [*os.sched_getaffinity(0)],
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:

        def pass_on(number: int, frame: object) -> None:
            with contextlib.suppress(OSError):  # it has ended
                connection.send(bytes([number]))

        connection.connect(os.environ[FORKS])
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        for each in PASSED_ON:
            signal.signal(each, pass_on)
        told = connection.recv(2)  # nothing if the process that forks is gone
        code = int.from_bytes(told, signed=True, byteorder="big") if told else 1
    if code < 0:
        if -code in PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(be_forked())
