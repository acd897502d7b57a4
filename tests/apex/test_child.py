"""Child processes behind pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddrl.apex.child import HEADER, Child, Frame, FrameReader, read_frame
from ddrl.launch.processes import stat_of

ROOT = Path(__file__).parent.parent.parent


def child(mode):
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    return Child("tests.apex.echoing_child", [mode, str(os.getpid())], environment)


def wait_for(condition, seconds=100.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
    return found


def test_frames_of_every_size_go_there_and_back_in_order():
    process = child("echo")
    frames = [b"", b"a", os.urandom(70_000), os.urandom(5_000_000), b"end"]
    try:
        for number, data in enumerate(frames):
            process.send(Frame.PARAMETERS, number, data)

        def next_frame():
            process.flush()
            return process.receive()

        for number, data in enumerate(frames):
            frame = wait_for(next_frame)
            assert (frame.kind, frame.number, frame.data) == (Frame.SEGMENT, number + 1, data[::-1])
    finally:
        process.end()


def test_a_child_that_nobody_listens_to_waits():
    process = child("flood")
    try:
        wait_for(process.receive)
        time.sleep(0.3)
        assert process.status() is None
        numbers = [wait_for(process.receive).number for _ in range(200)]
        assert numbers == list(range(1, 201))
    finally:
        process.end()


def test_a_child_acts_no_more_segments_ahead_than_it_may():
    """The pipes would hold hundreds of these."""
    process = child("ahead")
    try:
        for length in range(3):
            assert len(wait_for(process.receive).data) == length
        time.sleep(0.3)
        assert process.receive() is None
        process.send(Frame.TAKEN, 2)
        assert [len(wait_for(process.receive).data) for _ in range(2)] == [3, 4]
        time.sleep(0.3)
        assert process.receive() is None and process.status() is None
    finally:
        process.end()


def test_what_a_child_said_before_it_ended_is_not_lost():
    process = child("fails")
    try:
        first = wait_for(process.receive)
        wait_for(lambda: process.status() is not None)
        assert process.status() == 1 and first.number == 10
        segment, failure = process.last_words()
        assert len(segment.data) == 400_000 and (failure.kind, failure.data) == (Frame.FAILURE, b"why")
        assert process.last_words() == []
    finally:
        process.end()


def test_a_killed_child_is_seen_and_a_send_to_it_does_not_fail():
    process = child("sleep")
    os.kill(process.process.pid, signal.SIGKILL)
    assert wait_for(process.status) == -signal.SIGKILL
    process.send(Frame.PARAMETERS, 0, b"x" * 3_000_000)
    assert process.receive() is None
    process.end()


def test_a_killed_process_that_does_not_end_is_not_waited_for(monkeypatch):
    process = child("sleep")
    kill = process.process.kill
    monkeypatch.setattr(process.process, "kill", lambda: None)  # as if it hung in the kernel
    monkeypatch.setattr("ddrl.apex.child.KILL_SECONDS", 0.1)
    process.end()
    kill()
    assert process.process.wait(60.0) is not None


def test_a_child_whose_parent_is_gone_ends():
    process = child("orphan")
    assert wait_for(process.status) == 1
    process.end()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child ends with its pipe")
def test_a_child_ends_with_its_parent_even_when_it_does_not_read(tmp_path):
    program = (
        "import time; from tests.apex.test_child import child; flood = child('flood')\n"
        "while flood.receive() is None: time.sleep(0.01)\n"
        "print(flood.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: (stat := stat_of(pid)) is None or stat.state in "ZX")


def test_pieces_of_frames_are_put_together():
    data = b"".join(HEADER.pack(Frame.REPORT, n, n) + b"x" * n for n in range(4))
    reader, found = FrameReader(), []
    for i in range(len(data)):
        reader.add(data[i : i + 1])
        while (frame := reader.next()) is not None:
            found.append((frame.number, frame.data))
    assert found == [(n, b"x" * n) for n in range(4)]


@pytest.mark.parametrize("header", [(Frame.REPORT, 0, -1), (Frame.REPORT, 0, 1 << 60), (99, 0, 0)])
def test_what_is_no_frame_is_refused(header):
    reader = FrameReader()
    reader.add(HEADER.pack(*header))
    with pytest.raises(ValueError):
        reader.next()
    read, write = os.pipe()
    os.write(write, HEADER.pack(*header))
    with pytest.raises(ValueError):
        read_frame(read)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("length", [0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 4])
def test_a_frame_that_is_cut_off_is_the_end_of_the_other_side(length):
    read, write = os.pipe()
    os.write(write, (HEADER.pack(Frame.REPORT, 0, 5) + b"12345")[:length])
    os.close(write)
    assert read_frame(read) is None
    os.close(read)
