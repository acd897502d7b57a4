"""The examples as plugins: each file is loaded as --plugin loads it, and forgotten after the tests that used it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddrl import plugins

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def example():
    """Name of a file of examples/ -> its module."""
    registered, loaded, modules = plugins._registered(), set(plugins._loaded), set(sys.modules)

    def load(name):
        plugins.load([str(EXAMPLES / f"{name}.py")])
        return sys.modules[name]

    yield load
    plugins._forget(registered)
    for plugin in set(plugins._loaded) - loaded:
        name = plugins._loaded.pop(plugin)
        if name not in modules:
            sys.modules.pop(name, None)
