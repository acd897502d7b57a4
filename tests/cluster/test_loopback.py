"""A child that listens on all interfaces is moved to the loopback, and still serves."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from cluster import loopback
from cluster.loopback import confine, has_loopback, listeners

SERVER = """
import socket, sys
family, address = (socket.AF_INET, "0.0.0.0") if sys.argv[1] == "4" else (socket.AF_INET6, "::")
server = socket.socket(family)
server.bind((address, 0))
server.listen()
print(server.getsockname()[1], flush=True)
input()  # until it was moved
peer, _ = server.accept()
peer.sendall(b"served")
"""
MOVE_SECONDS = 60.0
needs_pidfd = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no descriptors of processes here")


def addresses(process: int) -> set[str]:
    return {address for address, owners in listeners().items() if process in owners}


@needs_pidfd
@pytest.mark.parametrize("version, before, after", [("4", "0.0.0.0", "127.0.0.1"), ("6", "::", "::1")])
def test_a_child_is_moved_and_still_serves(version, before, after):
    if version == "6" and not has_loopback(socket.AF_INET6):
        pytest.skip("no IPv6 here")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, version], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(process.stdout.readline())
        assert addresses(process.pid) == {before}
        confine(process.pid)
        end = time.monotonic() + MOVE_SECONDS
        while addresses(process.pid) != {after}:
            assert time.monotonic() < end, addresses(process.pid)
            time.sleep(0.01)
        process.stdin.write("\n")
        process.stdin.flush()
        with socket.create_connection((after, port), timeout=MOVE_SECONDS) as peer:
            assert peer.recv(6) == b"served"
    finally:
        process.kill()
        process.communicate()


@needs_pidfd
def test_a_socket_stays_at_its_port_where_there_is_no_loopback(monkeypatch):
    """As of IPv6 in many containers. It would go to another port of all interfaces."""
    monkeypatch.setitem(loopback.LOOPBACK, socket.AF_INET, "192.0.2.1")  # an address of no machine (RFC 5737)
    monkeypatch.setattr(loopback, "MORE_SECONDS", 0.1)
    has_loopback.cache_clear()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", SERVER, "4"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            port = int(process.stdout.readline())
            confine(process.pid).join(MOVE_SECONDS)
            assert addresses(process.pid) == {"0.0.0.0"}
            process.stdin.write("\n")
            process.stdin.flush()
            with socket.create_connection(("127.0.0.1", port), timeout=MOVE_SECONDS) as peer:
                assert peer.recv(6) == b"served"
    finally:
        has_loopback.cache_clear()


@needs_pidfd
@pytest.mark.parametrize("number, told", [(errno.EPERM, True), (errno.ENOSYS, True), (errno.ESRCH, False)])
def test_a_system_that_does_not_allow_it_is_told_of(monkeypatch, number, told):
    def refuse(process, handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(loopback, "listening", refuse)
    heard = threading.Event()
    confine(os.getpid(), heard.set).join(MOVE_SECONDS)
    assert heard.is_set() == told


def test_a_process_that_has_ended_is_in_nobodys_way():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    thread = confine(process.pid)
    thread.join(MOVE_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "digits, address", [("0100007F", "127.0.0.1"), ("00000000", "0.0.0.0"), ("00000000000000000000000001000000", "::1")]
)
def test_addresses_of_the_system(digits, address):
    if sys.byteorder == "little":
        assert loopback._address(digits) == address
