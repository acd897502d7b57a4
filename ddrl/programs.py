"""The outermost layer of every program, which turns system errors into one line and handles a lost standard output.

`run` wraps the main function of everything that is started as a process: the command line, ranks, their children.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import io
import os
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ddrl.errors import UsageError
from ddrl.terminal import printable

REFUSED = 2  # exit status for what the user can mend
CLOSED_PIPE = 141  # exit status that a shell reports of a program which SIGPIPE ended
OUTPUT = "standard output"
NO_HOME = "/nonexistent"  # as in Debian's list of users
SYSTEM_ERRORS = (OSError, MemoryError, UnicodeError, RecursionError)
_SPACE = "free space there, or name another place"
_ACCESS = "fix its permissions, or name another place"
REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "name another place",
    errno.EISDIR: "move it away, or name another place",
    errno.ENOTDIR: "name another place",
    errno.ENOENT: "make it, or name another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "choose another name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.EAGAIN: "close other programs, or raise their limit (ulimit -u)",
    errno.ENOMEM: "close other programs, or ask for less",
    errno.EIO: "look at the disk, or name another place",
    errno.ESTALE: "look at the file server, or name another place",
}


class OutputLost(OSError):
    """Standard output can no longer be written. It is no BrokenPipeError, which libraries would handle themselves."""


def say(message: str) -> int:
    """Prints a refusal as one line, without control characters of what it quotes; returns its exit status."""
    print(f"ddrl: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return REFUSED


def run(main: Callable[[], int | None], refuse: Callable[[str], int] = say, needs_output: bool = True) -> int:
    """Runs a program and returns its exit status. Exceptions that are bugs of the program itself are raised.

    From then on the program makes no file that everybody may write, whatever the umask was. When the process ends, it
    does not search its objects for garbage once more, which takes most of a second with TensorFlow's.

    Args:
        main: returns the exit status; None means 0.
        refuse: tells the user in one line what to mend; returns the exit status.
        needs_output: whether the program ends when its standard output can no longer be written.
    """
    atexit.register(gc.freeze)
    _give_home()
    # Whoever may write this user's config.json, or the script of a job, can make this user run any program.
    os.umask(os.umask(0o077) | 0o002)
    with _standard_streams(needs_output):
        try:
            status = main()
            sys.stdout.flush()
            return int(status or 0)
        except UsageError as error:
            return refuse(str(error))
        except SYSTEM_ERRORS as error:
            if isinstance(error, OutputLost) and error.errno == errno.EPIPE:
                return CLOSED_PIPE  # the program that read it, such as head, has seen enough
            if sys.flags.dev_mode:
                traceback.print_exc()
            return refuse(reason(error))


def python_command(module: str, version: tuple[int, int] = sys.version_info[:2]) -> list[str]:
    """The command that runs a module as `python -m` does, but finds no modules in the current directory.

    Another user may have put a file there that is named like a module that is missing here.
    """
    if version >= (3, 11):
        return [sys.executable, "-P", "-m", module]
    run = (
        "import sys; sys.path.remove(''); "
        "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", run, module]


def outlast_output() -> None:
    """Lets the program continue from now on even if its standard output can no longer be written."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Stream):
        raw.needed = False


def reason(error: BaseException) -> str:
    """One line for a system error: the path, what the system refused, and what to do."""
    if isinstance(error, MemoryError):
        return f"not enough memory{_detail(error)}: close other programs, or ask for less"
    if not isinstance(error, OSError):
        return f"{_place(error)}: {type(error).__name__}{_detail(error)}"
    # os.open leaves a Path as it was given
    named = (path for path in (error.filename, error.filename2) if isinstance(path, (str, bytes, os.PathLike)))
    paths = " and ".join(map(os.fsdecode, named))
    message = error.strerror or str(error) or type(error).__name__
    remedy = REMEDIES.get(error.errno or 0, "")
    return f"{paths or _place(error)}: {message}{'; ' if remedy else ''}{remedy}"


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context manager that adds the path to errors of reading and writing an open file, which do not name the file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _give_home() -> None:
    """Sets HOME if it is missing: Open MPI does not start without it, and libraries look for their settings there."""
    if "HOME" not in os.environ:
        home = os.path.expanduser("~")
        os.environ["HOME"] = home if os.path.isabs(home) else _own_directory(f"ddrl-home-{os.getuid()}")


def _own_directory(name: str) -> str:
    """A directory among the temporary files that only this user may use; it has that name unless somebody else took it.

    Everybody may write in the directory for temporary files itself, and so could put there what is read from HOME.
    """
    path = os.path.join(tempfile.gettempdir(), name)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        return path if private else tempfile.mkdtemp(prefix=f"{name}-")
    except OSError:
        return NO_HOME


def _detail(error: BaseException) -> str:
    return f" ({error})" if str(error) else ""


def _place(error: BaseException) -> str:
    """Where an error without a path was raised: the innermost line of this project."""
    here = os.path.dirname(__file__) + os.sep
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if frame.filename.startswith(here)] or frames
    return f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}" if frames else type(error).__name__


class _Stream(io.FileIO):
    """A standard stream. Once a write has failed, it discards everything, also what child processes write.

    Attributes:
        needed: whether that first failure is raised, as OutputLost with the stream's title as its path.
    """

    def __init__(self, descriptor: int, title: str, needed: bool):
        super().__init__(descriptor, "w", closefd=False)
        self.title, self.needed = title, needed

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if self.needed:
                raise OutputLost(error.errno, error.strerror, self.title) from error
            if self.title == OUTPUT:
                with contextlib.suppress(OSError):
                    print(f"ddrl: {self.title}: {error.strerror}; going on without it", file=sys.stderr, flush=True)
            return len(data)


@contextlib.contextmanager
def _standard_streams(needs_output: bool) -> Iterator[None]:
    """Context manager in which standard output and error fail at most once, and escape what their encoding lacks."""
    _open_missing()
    replaced = {}
    if sys.stderr is sys.__stderr__:
        replaced["stderr"] = sys.stderr = _text(sys.stderr, _Stream(2, "standard error", False))
    if sys.stdout is sys.__stdout__:
        replaced["stdout"] = sys.stdout = _text(sys.stdout, _Stream(1, OUTPUT, needs_output))
    try:
        yield
    finally:
        for name, stream in replaced.items():
            with contextlib.suppress(OSError):
                stream.flush()
            if getattr(sys, name) is stream:  # a rank of a job has put another one in its place
                setattr(sys, name, getattr(sys, f"__{name}__"))


def _text(before: io.TextIOWrapper | None, raw: _Stream) -> io.TextIOWrapper:
    encoding = getattr(before, "encoding", None) or "utf-8"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=True)


def _open_missing() -> None:
    """Opens those of the descriptors 0 to 2 that are closed, so that no output lands in a file that is opened later."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number: this one
