"""RLlib's IMPALA or APPO on an Atari game, in agent steps/s. Run as a file by a Python that has it.

It imports nothing of this package. The last line of its output is `RESULT` and one JSON object. Ray starts
processes of its own, which listen on this machine for as long as it runs.
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
    parser.add_argument("--algorithm", choices=["appo", "impala"], required=True)
    parser.add_argument("--game", default="Breakout", help="in camel case")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, after the warm-up")
    parser.add_argument("--warm-up-seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=2, help="processes that run environments")
    parser.add_argument("--environments", type=int, default=16, help="of each of these")
    parser.add_argument("--steps", type=int, default=20, help="agent steps of a rollout")
    parser.add_argument("--minibatch", type=int, default=500)
    parser.add_argument("--threads", type=int, default=0, help="of torch (0: as many as it takes by itself)")
    options = parser.parse_args()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Ray writes a token and results at home, and would not remove them.
        os.environ |= {"HOME": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        try:
            result = measure(options, folder)
        except ImportError as error:
            result = {"missing": str(error)}
    print("\nRESULT " + json.dumps(result), flush=True)


def measure(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Agent steps that were taken and learned from between two iterations: the lesser of both numbers."""
    import ale_py  # noqa: F401
    import gymnasium  # noqa: F401
    import ray
    import torch

    workers = options.workers + 1  # a processor each for them and for the learner, so that ray starts them all
    cores = max(workers, os.cpu_count() or 1)
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    algorithm = settings(options).build_algo()
    marks: list[tuple[float, tuple[int, int]]] = []  # when the warm-up began, when it ended, and the end
    try:
        while len(marks) < 3:
            steps, now = counted(algorithm.train()), time.perf_counter()
            wait = (0.0, options.warm_up_seconds, options.seconds)[len(marks)]
            if min(steps) > 0 and (not marks or now - marks[-1][0] >= wait):
                marks.append((now, steps))
    finally:
        algorithm.stop()
        ray.shutdown()
    _, (start, before), (end, after) = marks
    taken, used = (now - then for now, then in zip(after, before, strict=True))
    return {
        "name": "rllib",
        "version": ray.__version__,
        "torch": torch.__version__,
        "agent_steps": min(taken, used),
        "agent_steps_taken": taken,
        "agent_steps_used": used,
        "seconds": end - start,
        "agent_steps_per_second": min(taken, used) / (end - start),
        "threads": torch.get_num_threads(),
        **{name: getattr(options, name) for name in ("workers", "environments", "steps", "minibatch")},
    }


def counted(result: dict[str, Any]) -> tuple[int, int]:
    """Agent steps that were taken, and that the learner has used, so far."""
    taken = result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0)
    used = result.get("learners", {}).get("default_policy", {}).get("num_module_steps_trained_lifetime", 0)
    return int(taken), int(used)


def settings(options: argparse.Namespace) -> Any:
    """Its configuration: the Nature network, one learner in this process, workers that act meanwhile."""
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    register_env("atari", lambda config: make_environment(options.game))
    network = DefaultModelConfig(
        conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
        conv_activation="relu",
        head_fcnet_hiddens=[512],
        head_fcnet_activation="relu",
        vf_share_layers=True,
    )
    # APPO's ring of batches would train on each of them twice.
    config = IMPALAConfig() if options.algorithm == "impala" else APPOConfig().training(use_circular_buffer=False)
    return (
        config.environment("atari", clip_rewards=True)
        .env_runners(
            num_env_runners=options.workers,
            num_envs_per_env_runner=options.environments,
            rollout_fragment_length=options.steps,
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=options.minibatch, lr=0.0005, grad_clip=40.0, vf_loss_coeff=0.5)
        .rl_module(model_config=network)
        .reporting(min_time_s_per_iteration=1)
    )


def make_environment(game: str) -> Any:
    """Gymnasium's wrappers with grey frames from the emulator: faster here than RLlib's, which resize every frame."""
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing
    from ray.rllib.env.wrappers.atari_wrappers import FireResetEnv, FrameStack

    gymnasium.register_envs(ale_py)
    environment = gymnasium.make(f"{game}NoFrameskip-v4")
    environment = AtariPreprocessing(
        environment, frame_skip=4, terminal_on_life_loss=True, grayscale_newaxis=True, scale_obs=True
    )
    emulator: Any = environment.unwrapped
    if "FIRE" in emulator.get_action_meanings():
        environment = FireResetEnv(environment)
    return FrameStack(environment, 4)


if __name__ == "__main__":
    main()
