"""A rank's process whose work a fork does, see tests/parallel/forks.py: ranks_forked.py PROGRAM ARGUMENT..."""

from __future__ import annotations

import json
import os
import socket
import sys

FORKS = "TEST_FORKS"  # names the socket

if __name__ == "__main__":
    request = {"argv": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.environ[FORKS])
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        status = connection.recv(1)
    sys.exit(status[0] if status else 1)
