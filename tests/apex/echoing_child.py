"""A child for the tests: `python -m tests.apex.echoing_child MODE PARENT IN OUT`."""

from __future__ import annotations

import os
import sys
import time

from ddrl.apex.acting import Link
from ddrl.apex.child import Frame, end_with_parent, read_frame, write_frame

mode, (parent, read, write) = sys.argv[1], map(int, sys.argv[2:])
end_with_parent(parent if mode != "orphan" else -1)  # not 1, which is the tests' own process in some containers
if mode == "echo":
    while (frame := read_frame(read)) is not None:
        write_frame(write, Frame.SEGMENT, frame.number + 1, bytes(frame.data)[::-1])
elif mode == "flood":
    try:
        for number in range(10_000):
            write_frame(write, Frame.SEGMENT, number, os.urandom(8) * 4_000)
    except BrokenPipeError:
        sys.exit(3)
elif mode == "ahead":
    link = Link(read, write)
    for number in range(10_000):
        link.send_segment(b"x" * number, 3)
elif mode == "fails":
    for size in (10, 400_000):
        write_frame(write, Frame.SEGMENT, size, bytes(size))
    write_frame(write, Frame.FAILURE, 0, b"why")
    sys.exit(1)
elif mode == "sleep":
    time.sleep(60)
