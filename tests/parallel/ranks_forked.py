"""A rank's process whose work a fork does, see tests/parallel/forks.py: ranks_forked.py PROGRAM ARGUMENT..."""

from __future__ import annotations

import json
import os
import socket
import sys

FORKS = "TEST_FORKS"  # names the socket
MODULE = "ddrl.roles"  # of real ranks


def command(program: str = MODULE) -> tuple[str, ...]:
    """Starts a program of this directory, or the module of real ranks, in a fork; arguments follow."""
    return sys.executable, "-IS", __file__, program


def session_members(session: int) -> list[int]:
    """Stands in for the launcher's, which looks for its ranks in mpirun's session: forks are in another one."""
    from ddrl.launch import processes

    return [pid for pid, _ in processes._living()]


if __name__ == "__main__":
    request = {"argv": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.environ[FORKS])
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        status = connection.recv(1)
    sys.exit(status[0] if status else 1)
