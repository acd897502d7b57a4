"""A chief for each test."""

from __future__ import annotations

import pytest

from tests.roles.chief_play import Play


@pytest.fixture
def play(tmp_path, monkeypatch):
    return lambda **options: Play(tmp_path, monkeypatch, **options)
