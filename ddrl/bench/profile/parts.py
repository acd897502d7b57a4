"""Lists the methods of ddrl that a profile measures, and wraps them from outside.

A method that no longer exists is an error, rather than silently left out;
tests/bench/test_profile_parts.py finds it first.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ddrl.bench.profile.spans import Recorder

GRADIENT = "gradient"
WAITS = "wait: "  # prefix of the parts in which a thread waits for another thread or for a message
IDLE = WAITS + "messages"

PARTS: Mapping[str, tuple[str, ...]] = {
    "emulation: receive": (
        "ddrl.envs.atari_native:NativeAtari.recv",
        "ddrl.envs.envpool_environment:EnvPoolEnvironment.recv",
        "ddrl.envs.gymnasium_environment:GymnasiumEnvironment.recv",
        "ddrl.envs.process_environment:ProcessEnvironment.recv",
        "ddrl.envs.step_time:StepTime.recv",
    ),
    "emulation: send": (
        "ddrl.envs.atari_native:NativeAtari.send",
        "ddrl.envs.envpool_environment:EnvPoolEnvironment.send",
        "ddrl.envs.gymnasium_environment:GymnasiumEnvironment.send",
        "ddrl.envs.process_environment:ProcessEnvironment.send",
        "ddrl.envs.step_time:StepTime.send",
    ),
    "count steps": ("ddrl.sampling.actor:Actor.observe",),
    "draw actions": ("ddrl.sampling.actor:Actor.act",),
    "lay out weights": ("ddrl.learner:Preparation.__call__",),
    "inference": ("ddrl.learner:Policy.__call__",),
    WAITS + "predictor": ("ddrl.sampling.predictors:Predictors.ask",),
    WAITS + "queries": ("ddrl.sampling.predictors:Predictors._take",),
    "answer queries": ("ddrl.sampling.predictors:Predictors._answer",),
    "write rollout": ("ddrl.sampling.rollouts:RolloutActor.fill",),
    "batch unrolls": ("ddrl.sampling.rollouts:UnrollActor.advance", "ddrl.sampling.rollouts:UnrollBatcher.add"),
    "segments, returns": (
        "ddrl.sampling.data_points:DataPointActor.close",
        "ddrl.sampling.data_points:DataPointActor.store",
    ),
    "batch data-points": ("ddrl.sampling.batcher:Batcher.add",),
    WAITS + "room in the queue": ("ddrl.sampling.schedules:Asynchronous._put",),
    WAITS + "batch": ("ddrl.sampling.schedules:Asynchronous._take",),
    WAITS + "actors": ("ddrl.sampling.actor_threads:ActorThreads.wait",),
    "advantages": ("ddrl.sampling.minibatches:Minibatches.start",),
    "minibatch": ("ddrl.sampling.minibatches:Minibatches.take", "ddrl.sampling.replay_batches:ReplayBatches.take"),
    "replay: add": ("ddrl.replay.replay:Replay.add",),
    "replay: sample": ("ddrl.replay.replay:Replay.sample",),
    "replay: frame stacks": ("ddrl.replay.history:History.observations",),
    "replay: n-step sums": ("ddrl.replay.history:History.returns",),
    "replay: priorities": ("ddrl.replay.replay:Replay.set_priorities",),
    "sum tree: find": ("ddrl.replay.sum_tree:SumTree.find",),
    "sum tree: set": ("ddrl.replay.sum_tree:SumTree.set",),
    "targets": ("ddrl.targets:TargetFunction.__call__",),
    WAITS + "replay": ("ddrl.apex.remote_replay:RemoteReplay._take",),
    WAITS + "parameters": ("ddrl.roles.trainer:Trainer._wait_for_snapshot",),
    GRADIENT: ("ddrl.learner:Learner.gradient",),
    "metrics of a gradient": ("ddrl.roles.trainer:Trainer._gradient",),
    "hand gradient over": ("ddrl.roles.worker:WorkerRole._submit",),
    "take parameters": ("ddrl.roles.worker:WorkerRole._on_parameters",),
    "optimizer": (
        "ddrl.exchange.optimizers:Optimizer.apply",
        "ddrl.exchange.central_store.learner:SharedStatistics.submit",
        "ddrl.exchange.central_store.learner:LocalSteps.submit",
    ),
    "server": ("ddrl.roles.server:ServerRole.handle",),
    "transport": ("ddrl.exchange.local:LocalTransport.poll", "ddrl.exchange.mpi:MpiTransport.poll"),
    "send": ("ddrl.exchange.local:LocalTransport.send", "ddrl.exchange.mpi:MpiTransport.send"),
    "chief": ("ddrl.roles.chief:ChiefRole.handle", "ddrl.roles.chief:ChiefRole.advance"),
    "replay shard": ("ddrl.apex.replay_shard:ReplayShardRole.handle", "ddrl.apex.replay_shard:ReplayShardRole.advance"),
    "actor's rank": ("ddrl.apex.actor:ActorRole.handle", "ddrl.apex.actor:ActorRole.advance"),
    "evaluation": ("ddrl.roles.evaluator:EvaluatorRole.advance",),
    IDLE: ("ddrl.exchange.transport:Waiter.wait",),
}
"""Part -> its methods as module:class.method, in the order in which an update passes through the parts."""


def installed(recorder: Recorder) -> contextlib.ExitStack:
    """Wraps the methods of PARTS in the modules that this process has imported, until the returned stack is closed."""
    stack = contextlib.ExitStack()
    for part, names in PARTS.items():
        for name in names:
            if name.partition(":")[0] in sys.modules:
                owner, method = owner_of(name)
                before = vars(owner)[method]
                setattr(owner, method, recorder.wrap(part, before))
                stack.callback(setattr, owner, method, before)
    return stack


def owner_of(name: str) -> tuple[type, str]:
    """The class that defines a method, and the method's name.

    Args:
        name: module:class.method.

    Raises:
        AttributeError: there is no such class, or it defines no such method.
    """
    module, _, path = name.partition(":")
    class_name, _, method = path.partition(".")
    owner = getattr(importlib.import_module(module), class_name)
    if not callable(vars(owner).get(method)):
        raise AttributeError(f"{name}: no such method; name what it is called now in ddrl/bench/profile/parts.py")
    return owner, method


EMULATOR = "emulator"


def name_emulators() -> None:
    """Makes all threads that environments start from now on be named EMULATOR.

    A new thread inherits the name of the thread that starts it, which is renamed for that time.
    """
    import ddrl.envs
    from ddrl.envs import envpool_environment  # starts its threads only when it is reset

    def named(make: Callable[..., Any]) -> Callable[..., Any]:
        def make_named(*args: Any, **kwargs: Any) -> Any:
            with _thread_named(EMULATOR):
                return make(*args, **kwargs)

        return make_named

    ddrl.envs._make = named(ddrl.envs._make)
    envpool_environment._make = named(envpool_environment._make)


@contextlib.contextmanager
def _thread_named(name: str) -> Iterator[None]:
    path = f"/proc/self/task/{threading.get_native_id()}/comm"
    with open(path) as file:
        before = file.read()
    _write(path, name)
    try:
        yield
    finally:
        _write(path, before)


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(text)


def threads_now(time_of: Callable[[int], int]) -> dict[int, tuple[str, int]]:
    """For each thread of this process, native ID -> its name in the operating system, and `time_of` its native ID."""
    found = {}
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            found[thread] = (file.read().strip(), time_of(thread))
    return found
