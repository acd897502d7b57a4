"""`ddrl bench agent`: what the Python interface takes: its import, an action, and how near exported copies are."""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro

from ddrl import checks
from ddrl.algorithms import preset
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.checkpoint import Checkpoint
from ddrl.lazy import quiet_libraries
from ddrl.placement.resources import this_machine

IMPORT = "import time; began = time.perf_counter(); import ddrl; print(time.perf_counter() - began)"
IMPORTS, ACTIONS, WARM_UP = 5, 1000, 50


@dataclasses.dataclass(frozen=True)
class AgentArguments(BenchmarkArguments):
    """Measure `import ddrl`, `agent.act` on one observation, and the differences between an agent and its exports."""

    run: str = ""
    """Directory of a run whose newest checkpoint is the agent (default: an untrained one of BA3C on --game)."""
    game: str = "pong"
    """Game of the untrained agent."""
    observations: int = 10_000
    """Observations of the game with which each exported copy is compared."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The new name or path of a plugin of the run that has moved. May be given several times."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "observations")


def measure(arguments: AgentArguments) -> dict[str, Any]:
    """Measures the import in seconds and an action in milliseconds (medians), and compares the exported copies."""
    from ddrl.evaluation.agent import load_agent
    from ddrl.evaluation.export import export

    trained = Path(arguments.run) if arguments.run else None
    agent = load_agent(trained, compute_dtype="float32") if trained else untrained(arguments.game)
    copies = {"saved_model": "model"} | ({"onnx": "model.onnx"} if importlib.util.find_spec("tf2onnx") else {})
    with tempfile.TemporaryDirectory() as folder:
        exported = {kind: export(agent, Path(folder, name), arguments.observations) for kind, name in copies.items()}
    return {"import_seconds": _import_seconds(), "act_milliseconds": _act_milliseconds(agent), "exported": exported}


def untrained(game: str) -> Any:
    """An agent with the initial parameters of BA3C's defaults."""
    from ddrl.builders.agent import network_for
    from ddrl.envs import make_environment
    from ddrl.evaluation.agent import Agent

    config = preset("default", game, this_machine()).changed(network={"compute_dtype": "float32"})
    environment = make_environment(config.environment, 1, training=False)
    try:
        with quiet_libraries():
            network = network_for(config, environment)
            parameters = network.initial_parameters(config.run.seed)
            start = Checkpoint(0, 0, 0, 0.0, parameters, {}, 0, network.parameter_shapes, {})
            return Agent(config, start, environment)
    finally:
        environment.close()


def _import_seconds() -> float:
    """Seconds that `import ddrl` takes, the median over several processes."""
    command = [sys.executable, "-c", IMPORT]
    return statistics.median(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(IMPORTS)
    )


def _act_milliseconds(agent: Any) -> float:
    from ddrl.evaluation.export import game_observations

    (observation,) = next(game_observations(agent, 1))
    times = []
    for _ in range(WARM_UP + ACTIONS):
        began = time.perf_counter()
        agent.act(observation)
        times.append(time.perf_counter() - began)
    return 1000.0 * statistics.median(times[WARM_UP:])


main = Benchmark(
    name="agent",
    arguments=AgentArguments,
    measure=measure,
    title="the Python interface",
    notes={"import_seconds": "s, `import ddrl`, median", "act_milliseconds": "ms, one observation, median"},
)
