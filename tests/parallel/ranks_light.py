"""`python -m ddrl.roles` without TensorFlow, see tests/parallel/light.py."""

from __future__ import annotations

import sys

import light

if __name__ == "__main__":
    light.install()
    from ddrl.roles.__main__ import main

    sys.exit(main())
