"""Sample Factory's APPO on an Atari game, in agent steps/s. Run as a file by a Python that has it.

It imports nothing of this package. The last line of its output is `RESULT` and one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any


def main() -> None:
    """Trains for the warm-up and the measured time, and prints what was measured or what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=["appo", "impala"], required=True, help="impala: with V-trace")
    parser.add_argument("--game", default="Breakout", help="in camel case")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, after the warm-up")
    parser.add_argument("--warm-up-seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=2, help="processes that run environments")
    parser.add_argument("--environments", type=int, default=16, help="of each of these")
    parser.add_argument("--splits", type=int, default=2, help="groups of environments that take turns")
    parser.add_argument("--steps", type=int, default=32, help="agent steps of a rollout")
    parser.add_argument("--minibatch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of torch (0: as many as it takes by itself)")
    options = parser.parse_args()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    try:
        result = measure(options)
    except ImportError as error:
        result = {"missing": str(error)}
    print("\nRESULT " + json.dumps(result), flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Agent steps that the learner used from the end of one training step to that of another."""
    from importlib.metadata import version

    import ale_py  # noqa: F401
    import torch
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    class Clock(AlgoObserver):
        marks: list[tuple[float, int]] = []  # when the warm-up began, when it ended, and the end

        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            now = time.perf_counter()
            wait = (0.0, options.warm_up_seconds, options.seconds, 0.0)[len(self.marks)]
            if len(self.marks) < 3 and (not self.marks or now - self.marks[-1][0] >= wait):
                self.marks.append((now, runner.env_steps.get(0, 0)))
            if len(self.marks) == 3:
                runner.cfg.train_for_env_steps = 0  # ends the training

    register_env("atari", make_environment)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        _, runner = make_runner(settings(options, folder))
        runner.register_observer(clock)
        runner.init()
        runner.run()
    _, (start, before), (end, after) = clock.marks
    names = ("workers", "environments", "splits", "steps", "minibatch", "epochs")
    return {
        "name": "sample-factory",
        "version": version("sample-factory"),
        "torch": torch.__version__,
        "agent_steps": after - before,
        "seconds": end - start,
        "agent_steps_per_second": (after - before) / (end - start),
        "threads": torch.get_num_threads(),
        **{name: getattr(options, name) for name in names},
    }


def settings(options: argparse.Namespace, folder: str) -> Any:
    """Its configuration: the Nature network, asynchronous, one policy, no resampling of old data."""
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args

    chosen = {
        "env": "atari", "experiment": "peer", "train_dir": folder, "device": "cpu", "game": options.game,
        "num_workers": options.workers, "num_envs_per_worker": options.environments,
        "worker_num_splits": options.splits, "rollout": options.steps, "recurrence": 1, "use_rnn": False,
        "batch_size": options.minibatch, "num_epochs": options.epochs, "num_batches_per_epoch": 1, "async_rl": True,
        "with_vtrace": options.algorithm == "impala", "encoder_conv_architecture": "convnet_atari", "obs_scale": 255.0,
        "nonlinearity": "relu", "normalize_input": False, "normalize_returns": False, "env_frameskip": 4,
        "summaries_use_frameskip": False, "learning_rate": 0.00025, "ppo_clip_ratio": 0.1, "max_grad_norm": 0.5,
        "gae_lambda": 0.95, "exploration_loss_coeff": 0.01, "adam_eps": 1e-5, "train_for_env_steps": 10**9,
        "with_wandb": False, "save_every_sec": 10**6, "set_workers_cpu_affinity": False,
    }  # fmt: skip
    argv = [f"--{name}={value}" for name, value in chosen.items()]
    parser, _ = parse_sf_args(argv)
    parser.add_argument("--game")
    return parse_full_cfg(parser, argv)


def make_environment(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Gymnasium's wrappers with grey frames from the emulator: faster here than its own, which resize RGB."""
    import ale_py  # noqa: F401
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing, FrameStack
    from sample_factory.envs.env_wrappers import ClipRewardEnv, FireResetEnv, NumpyObsWrapper

    environment = gymnasium.make(f"{cfg.game}NoFrameskip-v4", render_mode=render_mode)
    environment = AtariPreprocessing(environment, frame_skip=4, terminal_on_life_loss=True)
    emulator: Any = environment.unwrapped
    if "FIRE" in emulator.get_action_meanings():
        environment = FireResetEnv(environment)
    return NumpyObsWrapper(FrameStack(ClipRewardEnv(environment), 4))


if __name__ == "__main__":
    main()
