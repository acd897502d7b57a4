"""`python -m ddrl.envs.simulator_process SETTINGS`: a process that steps simulators for ProcessEnvironment.

Commands come on standard input, answers go to standard output, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import numpy as np

from ddrl import plugin_modules, programs
from ddrl.config import EnvironmentConfig
from ddrl.envs import VectorEnvironment, make_in_thread
from ddrl.envs.gymnasium_environment import GymnasiumEnvironment
from ddrl.envs.pinning import pin_thread
from ddrl.envs.process_environment import Shape, SharedRows, map_rows
from ddrl.errors import UsageError, in_one_line, raised_at
from ddrl.structured import space_facts, type_text


def main(settings: dict[str, Any]) -> None:
    """Serves until standard input ends.

    Signals that ask a job to stop are for its ranks, though Slurm sends them to all processes. A handler, since what an
    environment starts would inherit SIG_IGN.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # an engine that prints would garble the answers

    def answer(value: dict) -> None:
        answers.write(json.dumps(value) + "\n")

    try:
        if settings["core"] is not None:
            pin_thread(settings["core"])  # before an engine makes threads
        plugin_modules.load(settings["plugins"])
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in settings["config"].items()
        }
        config = EnvironmentConfig(**values)
        env = make_in_thread(config, settings["num_envs"], trial=settings["trial"], first=settings["first"])
        shape = shape_of(env)
        answer(shape._asdict())
        rows = map_rows(settings["memory"], shape)
        for line in sys.stdin:
            serve(env, rows, json.loads(line))
            answer({})
    except UsageError as error:
        answer({"usage": str(error)})
    except BrokenPipeError:
        pass  # whoever made this process ends
    except Exception as error:
        answer({"failed": f"{in_one_line(error)}{raised_at(error)}"})
        raise


def shape_of(env: VectorEnvironment) -> Shape:
    """What the process that reads the rows must know of them."""
    return Shape(
        env.num_envs,
        env.players,
        list(env.observation_shape),
        type_text(env.observation_dtype),
        space_facts(env.action_space),
        env.stamp,
    )


def serve(env: GymnasiumEnvironment, rows: SharedRows, command: dict) -> None:
    """Carries out one command; after a reset or a step, the rows hold what recv gave.

    Args:
        env: the simulators of this process.
        rows: the memory that both processes map.
        command: `do` is reset (with a `seed`), step or reset_ended.
    """
    if command["do"] == "reset_ended":
        env.reset_ended()
        return
    if command["do"] == "reset":
        env.reset(command["seed"])
    else:
        env.send(rows.action)
    step = env.recv()
    for name, value in step._asdict().items():
        if name != "env_id":
            getattr(rows, name)[:] = value
    rows.finished[:] = np.nan
    for episode in env.pop_episodes():
        rows.finished[episode.env_id] = episode.score, episode.agent_steps


if __name__ == "__main__":
    sys.exit(programs.run(lambda: main(json.loads(sys.argv[1])), needs_output=False))
