"""Forks launchers, ranks, and commands of jobs from one process that has imported TensorFlow: forks.py SOCKET.

An import takes longer than most of these jobs. ranks_forked.py asks for a fork and stands for it under mpirun: both end
alike, and signals are passed on to the fork. SIGSTOP cannot be; the file beside SOCKET that is called as the process id
of the one that asked has that of the fork. A fork may have imported what a rank of its kind would not. With TEST_LIGHT
they are ranks without TensorFlow, see tests/parallel/light.py. This ends with its standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from pathlib import Path

import light
import ranks_forked

HERE = Path(__file__).parent
MOST_BYTES = 1_000_000  # of a request
NAMESPACES = ("ipc", "uts", "mnt")  # that nodes of tests/slurm have of their own


def preload() -> None:
    """What launchers and ranks import, apart from MPI, which is initialized when it is imported."""
    light.install()
    for module in (
        "ddrl.builders", "ddrl.cli", "ddrl.envs.catch", "ddrl.envs.control", "ddrl.envs.gymnasium_path",
        "ddrl.exchange.parameter_server", "ddrl.kernels.updates", "ddrl.launch.job", "ddrl.launch.local",
        "ddrl.networks.convolutional", "ddrl.networks.mlp", "ddrl.options.wanted", "ddrl.roles.compute",
        "ddrl.roles.main", "ale_py", "cv2", "tyro", "typeguard", "unittest.mock", "rich.live",
    ):  # fmt: skip
        importlib.import_module(module)
    from ddrl import lazy

    lazy.import_tensorflow()
    assert "mpi4py.MPI" not in sys.modules
    gc.freeze()  # so that forks copy little


def leave_with_who_started() -> None:
    """The input ends with the process that has its other end."""
    os.read(0, 1)
    os._exit(0)


def serve(path: str) -> None:
    """Forks a process for each that connects."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen(64)
        os.rename(f"{path}.new", path)  # whoever sees the path can connect
        forks: list[Fork] = []
        while True:
            ready = select.select([listener, *forks, *(fork.asker for fork in forks)], [], [])[0]
            for fork in list(forks):
                if fork in ready:
                    fork.tell()
                    forks.remove(fork)
                elif fork.asker in ready:
                    fork.obey()
            if listener in ready:
                forks.append(answer(listener, Path(path).parent))


class Fork:
    """A fork, which can be read when it has ended, and the connection `asker` of the process that asked for it."""

    def __init__(self, pid: int, asker: socket.socket, directory: Path):
        self.asker, self._pid, self._ended = asker, pid, os.pidfd_open(pid)
        self._note = directory / str(process_of(asker))
        self._note.write_text(str(pid))

    def fileno(self) -> int:
        """For select."""
        return self._ended

    def obey(self) -> None:
        """Passes a signal on; SIGKILL once the process that asked is gone."""
        number = b""
        with contextlib.suppress(OSError):
            number = self.asker.recv(1)
        os.kill(self._pid, number[0] if number else signal.SIGKILL)

    def tell(self) -> None:
        """Says how it has ended."""
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        with contextlib.suppress(OSError), self.asker:
            self.asker.send(code.to_bytes(2, signed=True, byteorder="big"))
        os.close(self._ended)
        self._note.unlink()


def process_of(asker: socket.socket) -> int:
    """Process id of the other end."""
    pid, *_ = struct.unpack("3i", asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid


def enter_namespaces(pid: int) -> None:
    """Moves this process, which has one thread, to where that one is. The current directory may then be another."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in NAMESPACES:
        if os.readlink(there := f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):
            with open(there) as namespace:
                if libc.setns(namespace.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), f"{there} cannot be entered")


def answer(listener: socket.socket, directory: Path) -> Fork:
    """Forks the process that somebody connects for."""
    connection, _ = listener.accept()
    message, files, *_ = socket.recv_fds(connection, MOST_BYTES, 3)
    if (pid := os.fork()) == 0:
        asker = process_of(connection)
        listener.close()
        connection.close()
        be_rank(json.loads(message), files, asker)
    for file in files:
        os.close(file)
    return Fork(pid, connection, directory)


def take_place(request: dict, asker: int) -> None:
    """Takes arguments, environment, directory, namespaces, and cores of the process that asked."""
    enter_namespaces(asker)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    os.sched_setaffinity(0, request["cores"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    random.seed()
    sys.argv[:] = request["argv"]


def be_rank(request: dict, files: list[int], asker: int) -> None:
    """Runs a program in the place of the process that asked; whatever fails, it never returns."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    status = 0
    try:
        take_place(request, asker)
        program = sys.argv[0]
        if program == ranks_forked.COMMAND:
            status = sys.modules["ddrl.cli"].main()
        elif program == ranks_forked.MODULE:
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
    os._exit(status)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    preload()
    threading.Thread(target=leave_with_who_started, daemon=True).start()
    serve(sys.argv[1])
