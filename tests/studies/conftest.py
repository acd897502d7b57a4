"""The study of `support.py` as a command."""

from __future__ import annotations

import sys

import pytest

from ddrl.commands import study as command
from tests.studies import support


@pytest.fixture
def runner(monkeypatch):
    """`ddrl study fake`."""
    runner = support.Runner()
    module = type(sys)("tests.studies.fake")
    module.STUDY = support.study(runner)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(command.STUDIES, "fake", module.__name__)
    return runner
