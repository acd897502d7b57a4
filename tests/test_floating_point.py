"""Denormals are flushed in the calling thread and in those that it starts; in a process of its own each."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SUPPORTED = platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")
PROGRAM = """
import threading
import numpy as np
from ddrl.floating_point import flush_denormals

def halves():  # of the smallest normal number: denormal
    results.append(float((np.full(64, 1.2e-38, np.float32) * np.float32(0.25)).max()))

results = []
halves()
assert flush_denormals()
halves()
thread = threading.Thread(target=halves)
thread.start()
thread.join()
print(*(result > 0 for result in results))
"""


@pytest.mark.skipif(not SUPPORTED, reason="no control register known for this machine")
def test_denormals_become_zero_here_and_in_new_threads():
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert output.stdout.split() == ["True", "False", "False"]


def test_another_machine_is_left_alone(monkeypatch):
    from ddrl import floating_point

    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not floating_point.flush_denormals()
