"""What computes in a process is built for the worker that it is."""

from __future__ import annotations

import types

import numpy as np
import pytest

from ddrl.checkpoint import Checkpoint
from ddrl.exchange.settings import OptimizerConfig
from ddrl.roles import compute
from ddrl.roles.resume import Start


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


def test_a_resume_gives_each_slot_to_the_optimizer_that_has_it_by_name(monkeypatch, tmp_path):
    """Those of a plugin may stand in another order in its file than in a checkpoint of before."""
    slots = {"v": np.float32([2.0]), "m": np.float32([1.0])}
    saved = Checkpoint(7, 7, 0, 0.0, np.float32([5.0]), slots, 7, (("w", (1,)),))
    monkeypatch.setattr(compute.checkpoints, "list_checkpoints", lambda run_dir: ["one"])
    monkeypatch.setattr(compute, "newest_start", lambda run_dir, config: Start(saved, (("resumed", "so"),)))
    roles = compute.ComputeRoles.__new__(compute.ComputeRoles)
    roles.context = types.SimpleNamespace(config=types.SimpleNamespace(optimizer=OptimizerConfig()), run_dir=tmp_path)
    roles.network = types.SimpleNamespace(size=1, parameter_shapes=(("w", (1,)),))
    checkpoint, notes = roles._start(resume=True)
    assert [(name, *slot) for name, slot in checkpoint.slots.items()] == [("m", 1.0), ("v", 2.0)]
    assert checkpoint.version == 7 and checkpoint.stamp == saved.stamp and notes == (("resumed", "so"),)
