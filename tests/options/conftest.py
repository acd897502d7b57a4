"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from ddrl import plugins


@pytest.fixture
def begins():
    """Registers an environment that begins so, as the game begins."""
    from tests.options.begins import Begins  # imports Gymnasium, which fast tests do without

    yield lambda *start, **info: plugins.register_environment("begins", lambda: Begins(*start, **info))
    plugins.environments.remove("begins")
