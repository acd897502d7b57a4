"""Flushing denormal numbers to zero, as TensorFlow does in its own threads.

Adam's first moment of a parameter that gets no gradient any more decays geometrically until it is denormal, and
there it stays. After a few thousand updates of a real network half of the moments are; arithmetic on them takes
ten times as long, so a server's update does (docs/results/speed-tried.md).
"""

from __future__ import annotations

import ctypes
import platform

# fenv_t of glibc and musl: its 32-bit words, the word with the control register, and the bits to set there.
_CONTROL = {
    "x86_64": (8, 7, 0x8040),  # mxcsr: flush to zero, denormals are zero
    "aarch64": (2, 0, 1 << 24),  # fpcr: flush to zero
}


def flush_denormals() -> bool:
    """Has this thread, and those that it starts from now on, treat denormal numbers as zero and produce none.

    Returns:
        Whether it could be done: on Linux, on x86-64 and 64-bit ARM.
    """
    if platform.system() != "Linux" or platform.machine() not in _CONTROL:
        return False
    words, word, bits = _CONTROL[platform.machine()]
    program = ctypes.CDLL(None)  # the C and mathematics libraries that Python itself has loaded
    environment = (ctypes.c_uint32 * words)()
    program.fegetenv(environment)
    environment[word] |= bits
    return program.fesetenv(environment) == 0
