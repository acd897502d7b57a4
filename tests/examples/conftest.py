"""The examples as plugins: each file is loaded as --plugin loads it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddrl import plugin_modules

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example():
    """Name of a file of examples/ -> its module."""

    def load(name):
        plugin_modules.load([str(EXAMPLES / f"{name}.py")])
        return sys.modules[name]

    return load
