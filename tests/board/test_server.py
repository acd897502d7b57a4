"""The board's server: on the loopback, for whoever has the token, and nobody reads a file by its name."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
import urllib.parse
from typing import NamedTuple

import pytest

from cluster.loopback import has_loopback
from ddrl.bench.board import ask, served
from ddrl.board.page import STATIC
from ddrl.board.server import MOST_RUNS
from tests.board.runs import end, evaluation, make_bare_runs, make_run, train_record

HOSTILE = "<img src=x onerror=alert(1)>"


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """The address of a board of two runs, the first of which has a video of 1,000 bytes.

    They have ended: one without a result changes its state when it has written nothing for a while.
    """
    root = tmp_path_factory.mktemp("runs")
    for name in ("first", HOSTILE):
        writer = make_run(root / name)
        writer.write(train_record(1))
        writer.write(evaluation(1, 2.0))
        end(root / name)
    (root / "first" / "video.mp4").write_bytes(bytes(range(250)) * 4)
    (root / "first" / "other.mp4").symlink_to("/etc/hostname")
    with served(root) as (address, _):
        yield address


def get(address, path, token=None, method="GET", **headers):
    """One request as it is typed.

    Args:
        token: None: the right one.
    """
    parts = urllib.parse.urlsplit(address)
    token = urllib.parse.parse_qs(parts.query)["token"][0] if token is None else token
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        connection.request(method, f"{path}{'&' if '?' in path else '?'}token={token}", headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


PATHS = ("/", "/runs", "/series?ids=1&name=train/loss", "/details?ids=1", "/log?ids=1", "/video/1/0", "/elsewhere")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", "wrong", "%00", "%C3%A9", "a&token="])
def test_no_token_no_data(board, path, token):
    answer = get(board, path, token)
    assert answer.status == 403 and b"open the address" in answer.body and len(answer.body) < 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1]"])
def test_another_host_is_refused(board, path, host):
    """A site that points its own name to 127.0.0.1 has no page and no data, not even with the token."""
    assert get(board, path, Host=host).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9999", "LOCALHOST"])
def test_a_tunnel_may_have_another_port(board, host):
    assert get(board, "/runs", Host=host).status == 200


def test_it_listens_on_the_loopback_alone(board):
    port = urllib.parse.urlsplit(board).port
    with open("/proc/net/tcp") as table:
        listening = [
            line.split()[1] for line in table if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
        ]
    assert listening == [f"0100007F:{port:04X}"]
    if has_loopback(socket.AF_INET6):
        with socket.socket(socket.AF_INET6) as other:
            assert other.connect_ex(("::1", port)) != 0


def test_the_page_allows_nothing_but_itself(board):
    answer = get(board, "/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert "http:" not in policy and "https:" not in policy
    for name, value in {
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }.items():
        assert answer.headers[name] == value
    assert "Access-Control-Allow-Origin" not in answer.headers and "Server" not in answer.headers
    assert not re.search(rb"<[^>]+ on[a-z]+=|<[^>]+style=", answer.body.split(b"<script")[0])


def test_what_the_page_asks(board):
    rows = json.loads(ask(board, "/runs"))
    by_name = {row["name"]: row for row in rows["runs"]}
    assert set(by_name) == {"first", HOSTILE}
    number = by_name["first"]["id"]
    series = json.loads(ask(board, "/series", [number, 99], ("train/loss", "evaluation/mean", "nothing")))
    assert series[str(number)]["columns"] == {"train/loss": [0.5], "evaluation/mean": [2.0], "nothing": []}
    assert set(series) == {str(number)}
    (details,) = json.loads(ask(board, "/details", [number]))
    assert [video["name"] for video in details["videos"]] == ["video.mp4"], "links lead elsewhere"
    assert details["settings"]["environment"]["game"] == "ddrl/Catch-v0"
    newest = max(row["version"] for row in rows["runs"])
    again = json.loads(ask(board, "/runs", since=newest))
    assert again["runs"] == [] and again["ids"] == rows["ids"]


def test_more_runs_than_one_request_may_name_are_kept_up_to_date(tmp_path):
    writer = make_run(tmp_path / "running")
    make_bare_runs(tmp_path, MOST_RUNS)
    with served(tmp_path) as (address, _):
        rows = json.loads(ask(address, "/runs"))
        assert len(rows["ids"]) == len(rows["runs"]) == MOST_RUNS + 1
        newest = max(row["version"] for row in rows["runs"])
        writer.write(train_record(7))
        until, changed = time.monotonic() + 60, []
        while not changed and time.monotonic() < until:
            time.sleep(0.2)
            changed = json.loads(ask(address, "/runs", since=newest))["runs"]
        assert [(row["name"], row["update"]) for row in changed] == [("running", 7)]


def test_the_page_asks_for_no_more_runs_at_once_than_the_server_takes():
    assert f"const MOST_RUNS = {MOST_RUNS};" in (STATIC / "source.js").read_text()


def test_a_video_from_its_middle_on(board):
    number = next(row["id"] for row in json.loads(ask(board, "/runs"))["runs"] if row["name"] == "first")
    answer = get(board, f"/video/{number}/0", Range="bytes=250-254")
    assert (answer.status, answer.body) == (206, b"\0\1\2\3\4") and answer.headers["Content-Type"] == "video/mp4"
    assert get(board, f"/video/{number}/0", Range="bytes=250-254", token="x").status == 403
    for path in (
        f"/video/{number}/1",
        "/video/99/0",
        "/video/1/-1",
        "/video/..%2F..%2Fetc/0",
        f"/video/{number}/../../../etc/passwd",
    ):
        assert get(board, path).status == 404


@pytest.mark.parametrize("path", ["/series?ids=x", "/series?ids=1e3", "/log?ids=-1", "/details?ids=" + "1," * 2000])
def test_odd_requests_are_refused(board, path):
    assert get(board, path).status == 400


def test_a_large_body_is_refused_before_it_comes(board):
    """Others on this machine can connect, too, and must not fill its memory without the token."""
    parts = urllib.parse.urlsplit(board)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        connection.putrequest("POST", "/runs")
        connection.putheader("Content-Length", "100000000")
        connection.endheaders()
        assert connection.getresponse().status == 400
    finally:
        connection.close()


def test_letters_of_a_stranger_do_not_come_to_the_terminal(tmp_path, capfd):
    make_run(tmp_path / "run")
    with served(tmp_path) as (address, _):
        parts = urllib.parse.urlsplit(address)
        with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
            connection.sendall(b"GET /\x9b31mowned?token=%FF HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert "owned" not in capfd.readouterr().err


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_nothing_is_changed_by_asking(board, method):
    assert get(board, "/runs", method=method).status in (403, 405)
