"""UsageError, which the command line turns into one line and exit status 2, and functions for errors in one line."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path


class UsageError(Exception):
    """Bad input from the user. The message names the value, the limit and the remedy, in one line.

    Attributes:
        word: the word of a command line that is refused because nothing has this name, or no option takes it; empty
            for other refusals.
    """

    def __init__(self, message: str, word: str = "") -> None:
        super().__init__(message)
        self.word = word


class RunFailed(Exception):
    """A run that `ddrl.train` began did not end well. The message says why, in one line.

    Attributes:
        path: absolute path of the run directory.
    """

    def __init__(self, message: str, path: Path):
        super().__init__(message)
        self.path = path


LONGEST_LINE = 1000  # letters; log.txt has the whole text
LIBRARIES = (Path(__file__).parent, Path(traceback.__file__).parent)  # ddrl, and Python's standard library


def in_one_line(error: BaseException) -> str:
    """Type and message of an exception, with slashes between the message's lines; of a UsageError only the message."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    text = " / ".join(line for line in lines if line)
    if not isinstance(error, UsageError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return shortened(text)


def shortened(line: str) -> str:
    """A line that is not longer than LONGEST_LINE, and three dots where it was."""
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " ..."


def raised_at(error: BaseException) -> str:
    """' (FILE, line N)': the last line of a user's own code in the traceback; if there is none, the last line."""
    passed = list(traceback.extract_tb(error.__traceback__))
    frames = [frame for frame in passed if _is_of_user(frame.filename)] or passed
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def raised_in(error: BaseException) -> str:
    """The name of the function that raised it."""
    return traceback.extract_tb(error.__traceback__)[-1].name


def raised_by_user(error: BaseException) -> bool:
    """Whether the line that raised it is one of a user's own code."""
    return _is_of_user(traceback.extract_tb(error.__traceback__)[-1].filename)


def _is_of_user(file: str) -> bool:
    """Whether a file belongs neither to ddrl, nor to Python, nor to an installed package."""
    path = Path(file)
    return path.is_absolute() and not (
        {"site-packages", "dist-packages"} & set(path.parts) or any(path.is_relative_to(place) for place in LIBRARIES)
    )


def says_what_to_do(error: BaseException) -> bool:
    """Whether an exception in a user's code is a refusal or an error of the system, such as a full disk."""
    return isinstance(error, (UsageError, MemoryError)) or (isinstance(error, OSError) and error.errno is not None)


# What code may raise that reads content of others as if it were sound.
MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextlib.contextmanager
def read_as(content: str, remedy: str, not_in: str = "") -> Iterator[None]:
    """Context manager for code that reads content of others: any error becomes a UsageError of one line.

    Args:
        content: what is read, for the message.
        remedy: what the user can do, for the message.
        not_in: name of a function whose errors have nothing to do with the content, and stay as they are.

    Raises:
        UsageError: '`content` is malformed (why): `remedy`'; one that is raised inside stays as it is.
    """
    try:
        yield
    except MALFORMED as error:
        if any(frame.f_code.co_name == not_in for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise
        raise UsageError(f"{content} is malformed ({in_one_line(error):.200}): {remedy}") from error


@contextlib.contextmanager
def written(place: str, remedy: str, new: bool = False) -> Iterator[None]:
    """Context manager for code that writes files: an error of the system becomes a UsageError of one line.

    Args:
        place: the option and its value, for the message.
        remedy: what the user can do, for the message.
        new: the code makes a file that must not be there yet.

    Raises:
        FileExistsError: `new` is true, and it is there.
        UsageError: '`place`: why; `remedy`'.
    """
    try:
        yield
    except OSError as error:
        if new and isinstance(error, FileExistsError):
            raise
        raise UsageError(f"{place}: {error.strerror}; {remedy}") from error


@contextlib.contextmanager
def called(what: str, remedy: str = "") -> Iterator[None]:
    """Context manager for a call of a user's code: what it raises becomes a UsageError of one line.

    Args:
        what: is called, for the message.
        remedy: what the user can do, for the end of the message.

    Raises:
        UsageError: '`what`: why (FILE, line N)`remedy`'; one that is raised inside stays as it is.
    """
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(f"{what}: {in_one_line(error)}{raised_at(error)}{remedy}") from error
