"""The examples as plugins: each file is loaded as --plugin loads it, and forgotten after the tests that used it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddrl import plugins

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def example():
    """Name of a file of examples/ -> its module."""
    before = set(plugins._loaded)

    def load(name):
        plugins.load([str(EXAMPLES / f"{name}.py")])
        return sys.modules[name]

    yield load
    for plugin in set(plugins._loaded) - before:
        module = plugins._loaded.pop(plugin)
        del sys.modules[module]
        for registry in plugins.REGISTRIES:
            for name in registry.of_module(module):
                registry.remove(name)
