"""Whether the methods that `ddrl bench profile` wraps are still there, and every update is in their parts."""

from __future__ import annotations

import ast
import importlib
import threading
import time
from pathlib import Path

import pytest

import ddrl.envs
from ddrl import algorithms
from ddrl.bench.profile import parts
from ddrl.bench.profile.parts import GRADIENT, PARTS, installed, owner_of
from ddrl.bench.profile.spans import Recorder, clipped, self_times, thread_time
from ddrl.envs import envpool_environment
from ddrl.types import Machine, Snapshot

MACHINE = Machine(2, 16 * 10**9)
NAMES = [name for names in PARTS.values() for name in names]


def source_of(module):
    root = Path(ddrl.__file__).parents[1]
    return ast.parse(root.joinpath(*module.split(".")).with_suffix(".py").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_each_wrapped_method_is_defined(name):
    """From the source: ddrl.exchange.mpi would start MPI."""
    module, _, path = name.partition(":")
    owner, _, method = path.partition(".")
    classes = {node.name: node for node in source_of(module).body if isinstance(node, ast.ClassDef)}
    assert owner in classes, f"{name}: the class has another name or place; say so in {parts.__name__}"
    defined = [node.name for node in classes[owner].body if isinstance(node, ast.FunctionDef)]
    assert method in defined, f"{name}: the method has another name; say so in {parts.__name__}"


def test_a_name_that_is_gone_is_an_error():
    for name in ("ddrl.exchange.local:LocalTransport.polled", "ddrl.exchange.local:Local.poll"):
        with pytest.raises(AttributeError):
            owner_of(name)


def test_every_environment_is_wrapped():
    """Each class that steps simulators for an actor."""
    found = set()
    for path in Path(ddrl.envs.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            methods = {each.name for each in getattr(node, "body", []) if isinstance(each, ast.FunctionDef)}
            protocol = any(getattr(base, "id", "") == "Protocol" for base in getattr(node, "bases", []))
            if isinstance(node, ast.ClassDef) and {"recv", "send"} <= methods and not protocol:
                found.add(f"ddrl.envs.{path.stem}:{node.name}")
    assert {name.rpartition(".")[0] for name in PARTS["emulation: receive"]} == found
    assert {name.rpartition(".")[0] for name in PARTS["emulation: send"]} == found


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_an_update_of_every_algorithm_is_in_parts(name, tmp_path):
    """Two gradients, whose batches come through the schedule that the algorithm's run has."""
    from ddrl.builders.agent import make_environments, make_learner, make_schedule, network_for
    from ddrl.reporting.rank_metrics import RankMetrics
    from ddrl.roles.trainer import Trainer

    config = algorithms.preset("smoke", None, MACHINE, name).changed(run={"run_dir": str(tmp_path)})
    environments = make_environments(config)
    network, metrics = network_for(config, environments[0]), RankMetrics("worker", 0)
    schedule = make_schedule(config, environments, network, metrics, 0)
    shape, dtype = environments[0].observation_shape, environments[0].observation_dtype
    learner = make_learner(config, network, shape, dtype)
    woken = threading.Semaphore(0)
    trainer = Trainer(schedule, learner, metrics, woken.release, lambda version: 1.0, network.parameter_shapes, (0, 0))
    recorder = Recorder()
    with installed(recorder):
        recorder.active = True
        begin = time.monotonic_ns()
        schedule.set_state({}, 0)
        trainer.start()
        for version in range(2):
            snapshot = Snapshot(version, version, network.initial_parameters(0))
            schedule.update(snapshot)
            trainer.parameters(snapshot)
            assert woken.acquire(timeout=100)
        end = time.monotonic_ns()
        tracks = recorder.tracks()
        recorder.active = False
        trainer.stop()
    assert trainer.error is None
    totals = {track.name: self_times(clipped(spans, begin, end)) for track, spans in tracks}
    assert totals["trainer"][GRADIENT].calls == 2
    known = {part for total in totals.values() for part in total}
    assert {"emulation: receive", "emulation: send", "inference", "draw actions", "wait: parameters"} <= known
    assert all(sum(part.wall for part in total.values()) <= end - begin for total in totals.values())


def test_methods_are_themselves_again_afterwards():
    module = importlib.import_module("ddrl.exchange.local")
    before = vars(module.LocalTransport)["poll"]
    with installed(Recorder()):
        assert vars(module.LocalTransport)["poll"] is not before
    assert vars(module.LocalTransport)["poll"] is before


def test_threads_of_environments_are_called_so(monkeypatch):
    end, started = threading.Event(), []

    def make():
        started.append(threading.Thread(target=end.wait))
        started[0].start()

    monkeypatch.setattr(ddrl.envs, "_make", make)
    monkeypatch.setattr(envpool_environment, "_make", make)
    parts.name_emulators()
    ddrl.envs._make()
    names = {thread: name for thread, (name, _) in parts.threads_now(thread_time).items()}
    end.set()
    started[0].join()
    assert names[started[0].native_id] == parts.EMULATOR != names[threading.get_native_id()]
    assert envpool_environment._make is not make, "those of EnvPool, too"
