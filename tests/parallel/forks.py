"""Forks launchers and ranks of jobs from one process that has imported TensorFlow: forks.py SOCKET.

An import takes longer than most of these jobs. ranks_forked.py asks for a fork and stands for it under mpirun. The fork
ends with it, but other signals do not reach it, and it may have imported what a rank of its kind would not. With
TEST_LIGHT they are ranks without TensorFlow, see tests/parallel/light.py. This ends with its standard input.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
from pathlib import Path

import light
import ranks_forked

HERE = Path(__file__).parent
MOST_BYTES = 1_000_000  # of a request


def preload() -> None:
    """What launchers and ranks import, apart from MPI, which is initialized when it is imported."""
    light.install()
    import ddrl.builders
    import ddrl.cli
    import ddrl.kernels.updates
    import ddrl.launch.local
    import ddrl.lazy
    import ddrl.learner
    import ddrl.options.wanted
    import ddrl.roles.main

    ddrl.lazy.import_tensorflow()
    assert "mpi4py.MPI" not in sys.modules
    gc.freeze()  # so that forks copy little


def leave_with_who_started() -> None:
    """The input ends with the process that has its other end."""
    os.read(0, 1)
    os._exit(0)


def serve(path: str) -> None:
    """Forks a process for each that connects."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a fork tells its status itself
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen(64)
        os.rename(f"{path}.new", path)  # whoever sees the path can connect
        while True:
            connection, _ = listener.accept()
            message, files, *_ = socket.recv_fds(connection, MOST_BYTES, 3)
            if os.fork() == 0:
                listener.close()
                be_rank(connection, json.loads(message), files)
            for file in files:
                os.close(file)
            connection.close()


def be_rank(connection: socket.socket, request: dict, files: list[int]) -> None:
    """Runs a program with the arguments, environment, and streams of the process that asked; never returns."""
    leave = os._exit

    def leave_with_word(status: int) -> None:
        with contextlib.suppress(OSError):
            connection.send(bytes([status & 0xFF]))
        leave(status)

    def end_with_who_asked() -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)

    os._exit = leave_with_word
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    random.seed()
    threading.Thread(target=end_with_who_asked, daemon=True).start()
    program, *sys.argv[1:] = request["argv"]
    sys.argv[0] = program
    status = 0
    try:
        if program == ranks_forked.MODULE:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(HERE / program), run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    leave_with_word(status)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    preload()
    threading.Thread(target=leave_with_who_started, daemon=True).start()
    serve(sys.argv[1])
