"""What is made of a run that has ended: its learning curve and a video. `python -m ddrl.launch.finish RUN`.

A process of its own, because the launcher does not import TensorFlow. Prints one line for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from ddrl import programs, rundir
from ddrl.errors import in_one_line


def main(argv: list[str]) -> int:
    """Makes both for the run directory argv[0]. A failure is one line, as the run itself is safe."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    path = Path(argv[0])
    print(attempt("learning curve", lambda: _curve(path)), flush=True)
    if rundir.load_config(path).run.video:
        print(attempt("video", lambda: _video(path)), flush=True)
    return 0


def attempt(name: str, make: Callable[[], object]) -> str:
    """`name: path`, or a warning that says why there is none."""
    try:
        return f"{name}: {make()}"
    except Exception as error:  # noqa: BLE001 - what follows a run never makes it fail
        return f"warning: no {name}: {in_one_line(error)}"


def _curve(path: Path) -> object:
    from ddrl.reporting.plots import plot_learning_curve

    return plot_learning_curve(path)


def _video(path: Path) -> object:
    from ddrl.envs.control import choose_renderer
    from ddrl.evaluation.agent import load_agent
    from ddrl.evaluation.video import record_best_game
    from ddrl.reporting.texts import raw_score

    choose_renderer()
    agent = load_agent(path, batch_sizes=(1,))
    video = path / "video.mp4"
    config = agent.config
    score, games = record_best_game(
        config.environment,
        agent.policy,
        video,
        seed=config.run.seed,
        epsilon=config.evaluation.eval_epsilon,
        drawn=config.evaluation.draws_actions,
    )
    return f"{video} (score {raw_score(score, 2)}, {'one game' if games == 1 else f'the best of {games} games'})"


if __name__ == "__main__":
    sys.exit(programs.run(lambda: main(sys.argv[1:])))
