"""The page and its answers over HTTP, on the loopback alone, for whoever has the token.

The token is in the address, as that of a notebook is, and every request must bear it, also the one for the page. The
name that a browser was told (the Host header) must be one of this machine's own, so that no other site can point its
name here and have a browser ask (DNS rebinding). Answers depend on numbers alone: no request names a file.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import secrets
import signal
from collections.abc import Callable
from typing import Any

import tornado.httpserver
import tornado.netutil
import tornado.web

from ddrl.board.board import Board
from ddrl.board.page import page
from ddrl.board.run import to_json
from ddrl.errors import UsageError

ADDRESS = "127.0.0.1"
HOSTS = (ADDRESS, "localhost")
"""Names of this machine that a request may be for; one that comes through `ssh -L` has one of them, too."""
PORT = 8642
"""Tried first, so that a tunnel can be kept; another free one where it is taken."""
MOST_RUNS = 1000  # that one request may ask for
MOST_BODY_BYTES, QUIET_SECONDS = 1024, 60.0
"""Of a request, which needs no body, and of a connection between two: other users of this machine, who have no token,
get neither more memory nor a descriptor for longer."""
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _Guarded(tornado.web.RequestHandler):
    """Refuses what does not bear the token, or was meant for another host."""

    def initialize(self, board: Board, token: str, reader: concurrent.futures.Executor) -> None:
        self._board, self._token, self._reader = board, token.encode(), reader

    def set_default_headers(self) -> None:
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.clear_header("Server")

    def prepare(self) -> None:
        if self.request.host_name not in HOSTS:
            raise tornado.web.HTTPError(403, reason="Not a name of this machine")
        given = self.get_query_argument("token", "", strip=False)
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token):
            raise tornado.web.HTTPError(403, reason="The token is missing or wrong")

    def write_error(self, status_code: int, **_: Any) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code} {self._reason}: open the address that `ddrl board` printed.\n")

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """A refusal is told to whoever asked: letters of a stranger do not come to this terminal, which obeys some."""
        if not isinstance(value, tornado.web.HTTPError):
            super().log_exception(typ, value, tb)

    async def answer(self, ask: Callable[[], Any]) -> None:
        """Writes what `ask` returns. It reads files, so another thread does it."""
        text = await asyncio.get_running_loop().run_in_executor(self._reader, lambda: to_json(ask()))
        self.set_header("Content-Type", "application/json")
        self.finish(text)

    def numbers(self, name: str) -> list[int]:
        """Whole numbers of an argument, parted by commas."""
        words = self.get_query_argument(name, "").split(",")
        if len(words) > MOST_RUNS or not all(
            word.isascii() and word.isdigit() and len(word) < 10 for word in words if word
        ):
            raise tornado.web.HTTPError(400, reason=f"No list of numbers: {name}")
        return [int(word) for word in words if word]


class _Page(_Guarded):
    def get(self) -> None:
        html, policy = page(self._board.title)
        self.set_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")
        self.finish(html)


class _Runs(_Guarded):
    async def get(self) -> None:
        since = max(self.numbers("since"), default=0)
        await self.answer(lambda: self._board.runs(since))


class _Series(_Guarded):
    async def get(self) -> None:
        ids, names = self.numbers("ids"), self.get_query_arguments("name", strip=False)
        await self.answer(lambda: self._board.series(ids, names))


class _Details(_Guarded):
    async def get(self) -> None:
        ids = self.numbers("ids")
        await self.answer(lambda: self._board.details(ids))


class _Log(_Guarded):
    async def get(self) -> None:
        ids = self.numbers("ids")
        await self.answer(lambda: [self._board.log(number) for number in ids])


class _Video(_Guarded, tornado.web.StaticFileHandler):
    """A video, also from its middle on, as players ask for it."""

    def initialize(self, board: Board, token: str, reader: concurrent.futures.Executor) -> None:  # type: ignore[override]
        _Guarded.initialize(self, board, token, reader)
        tornado.web.StaticFileHandler.initialize(self, path="/")

    def set_default_headers(self) -> None:
        _Guarded.set_default_headers(self)

    async def get(self, number: str, index: str) -> None:  # type: ignore[override]
        place = int(number), int(index)
        path = await asyncio.get_running_loop().run_in_executor(self._reader, self._board.video, *place)
        if path is None:
            raise tornado.web.HTTPError(404, reason="No such video")
        self._video = str(path)
        await super().get(path.name)

    def get_absolute_path(self, root: str, path: str) -> str:  # type: ignore[override]
        return self._video

    def validate_absolute_path(self, root: str, absolute_path: str) -> str:
        return absolute_path

    def compute_etag(self) -> None:
        return None  # the whole file would be read for it


def application(board: Board, token: str, reader: concurrent.futures.Executor) -> tornado.web.Application:
    """What answers requests.

    Args:
        token: that every request must bear.
        reader: the thread that reads files.
    """
    parts = {"board": board, "token": token, "reader": reader}
    handlers = [
        (r"/", _Page, parts),
        (r"/runs", _Runs, parts),
        (r"/series", _Series, parts),
        (r"/details", _Details, parts),
        (r"/log", _Log, parts),
        (r"/video/([0-9]{1,9})/([0-9]{1,9})", _Video, parts),
    ]
    none = {"default_handler_class": _Nothing, "default_handler_args": parts}
    return tornado.web.Application(handlers, log_function=lambda handler: None, **none)  # type: ignore[arg-type]


class _Nothing(_Guarded):
    def get(self, *_: str) -> None:
        raise tornado.web.HTTPError(404)


async def serve(board: Board, port: int | None, told: Callable[[str], None]) -> None:
    """Answers requests until the task is canceled or the process is told to end (SIGINT, SIGTERM).

    Args:
        port: to listen at (0: any free one; None: PORT, or any free one where that is taken).
        told: is given the address, once it answers.

    Raises:
        UsageError: the port cannot be had.
    """
    token, ended = secrets.token_urlsafe(24), asyncio.Event()  # random, 192 bits
    with concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="board") as reader:
        server = tornado.httpserver.HTTPServer(
            application(board, token, reader),
            max_body_size=MOST_BODY_BYTES,
            body_timeout=QUIET_SECONDS,
            idle_connection_timeout=QUIET_SECONDS,
        )
        sockets = _listen(port)
        server.add_sockets(sockets)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        try:
            reader.submit(board.runs)  # so that the table is ready when the page is opened
            told(f"http://{ADDRESS}:{sockets[0].getsockname()[1]}/?token={token}")
            await ended.wait()
        finally:
            server.stop()
            await server.close_all_connections()


def _listen(port: int | None) -> list[Any]:
    try:
        return tornado.netutil.bind_sockets(PORT if port is None else port, ADDRESS)
    except OSError as error:
        if port is None:
            return tornado.netutil.bind_sockets(0, ADDRESS)
        raise UsageError(f"--port {port}: {error.strerror}; name another one, or 0 for any that is free") from error
