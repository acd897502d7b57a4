"""What tests of the roles of Ape-X share."""

from __future__ import annotations

import pytest

from ddrl.apex import actor as actor_module
from ddrl.apex import replay_shard as shard_module


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(actor_module, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(shard_module, "FILL_SECONDS", 0.0)
