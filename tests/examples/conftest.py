"""The examples as plugins: each file is loaded as --plugin loads it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddrl import plugin_modules
from ddrl.launch import local

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def forked_ranks(forked_ranks, monkeypatch):
    """And no learning curve is drawn, which would take another process."""
    monkeypatch.setattr(local, "finish", lambda *arguments: None)


@pytest.fixture
def example():
    """Name of a file of examples/ -> its module."""

    def load(name):
        plugin_modules.load([str(EXAMPLES / f"{name}.py")])
        return sys.modules[name]

    return load
