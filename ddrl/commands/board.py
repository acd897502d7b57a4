"""`ddrl board [RUNS]`: a web page to watch and compare runs, served on this machine or written as a file."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import platform
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ddrl import checks
from ddrl.errors import UsageError
from ddrl.files import write_whole
from ddrl.options import command_line

if TYPE_CHECKING:
    from ddrl.board.board import Board

DEFAULT = "runs"


@dataclasses.dataclass(frozen=True)
class BoardArguments:
    """Watch and compare runs on a web page: scores, rates, curves that follow runs that go on, where the time goes,
    settings that differ, videos and logs. The page needs no network. It is served on 127.0.0.1, to anyone who has the
    token in its address, until Ctrl-C; or --output writes it as one file."""

    runs: tyro.conf.Positional[tuple[str, ...]] = (DEFAULT,)
    """Directories of runs, or directories that hold runs at any level; new runs appear by themselves."""
    output: str = ""
    """Write the page, with all runs as they are now, to this file and exit. It can be opened and sent anywhere."""
    host: str = "127.0.0.1"
    """Address to serve on: only this machine's own, 127.0.0.1. From elsewhere, use SSH."""
    port: int | None = None
    """Port to serve on (0: any free one; None: 8642, or any free one where that is taken)."""

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65535:
            checks.refuse(self, "port", "use 0 (any that is free) to 65535")
        if self.host not in ("127.0.0.1", "localhost"):
            raise UsageError(
                f"--host {self.host}: the board serves only this machine, 127.0.0.1; from another one, use "
                f"`ssh -L 8642:127.0.0.1:8642 {platform.node() or 'HOST'}`"
            )


def main(argv: Sequence[str]) -> int:
    """Serves until it is told to end, or writes a file; returns the exit status."""
    arguments = command_line.read(BoardArguments, argv, "ddrl board")
    from ddrl.board.board import Board
    from ddrl.board.discovery import check_roots
    from ddrl.board.texts import shown

    roots = [Path(path) for path in arguments.runs or (DEFAULT,)]
    check_roots(roots)
    board = Board(roots)
    if arguments.output:
        _write(board, Path(arguments.output))
        return 0
    from ddrl.board.server import serve

    def tell(address: str) -> None:
        print(f"ddrl board of {shown(board.title)}: open\n\n    {address}\n", flush=True)
        if "SSH_CONNECTION" in os.environ:
            port = urllib.parse.urlsplit(address).port
            print(f"from your own machine, first run: ssh -L {port}:127.0.0.1:{port} {platform.node()}", flush=True)
        print("Ctrl-C ends it; the runs go on.", flush=True)

    asyncio.run(serve(board, arguments.port, tell))
    return 0


def _write(board: Board, path: Path) -> None:
    from ddrl.board.page import page

    data = page(board.title, board.everything()).html.encode()
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a pipe, or a device such as /dev/stdout, which no file may replace
        else:
            write_whole(Path(os.path.realpath(path)), data)  # a link stays one
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}; name a file that can be written") from error
    print(f"page: {path} ({len(data) / 1e6:.1f} MB)")
