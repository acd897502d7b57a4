"""What computes in a process is built for the worker that it is."""

from __future__ import annotations

import types

import pytest

from ddrl.roles import compute


class Told(Exception):
    """Ends what follows the making of environments."""


def test_a_worker_has_its_own_environments(monkeypatch):
    def make_environments(config, worker):
        raise Told(config, worker)

    monkeypatch.setattr(compute, "make_environments", make_environments)
    roles = compute.ComputeRoles.__new__(compute.ComputeRoles)
    roles.context = types.SimpleNamespace(config=None, layout=types.SimpleNamespace(actors=()))
    roles._worker_config = "settings"
    with pytest.raises(Told) as told:
        roles.worker(transport=None, index=2, wake=None)
    assert told.value.args == ("settings", 2), "the last of three may be a straggler"
