"""Stable-Baselines3's A2C, PPO or DQN on an Atari game, in agent steps/s. Run as a file by a Python that has it.

It imports nothing of this package. The last line of its output is `RESULT` and one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any


def main() -> None:
    """Trains for the warm-up and the measured time, and prints what was measured or what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=["a2c", "ppo", "dqn"], required=True)
    parser.add_argument("--game", default="Breakout", help="in camel case")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, after the warm-up")
    parser.add_argument("--warm-up-seconds", type=float, default=5.0)
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5, help="of each environment per rollout; DQN: per gradient")
    parser.add_argument("--epochs", type=int, default=4, help="PPO only")
    parser.add_argument("--minibatch", type=int, default=256, help="PPO and DQN")
    parser.add_argument("--replay", type=int, default=100_000, help="DQN only: transitions")
    parser.add_argument("--learning-starts", type=int, default=0, help="DQN only: agent steps before the warm-up")
    parser.add_argument("--processes", choices=["one", "many"], default="one", help="DummyVecEnv or SubprocVecEnv")
    parser.add_argument("--threads", type=int, default=0, help="of torch (0: as many as it takes by itself)")
    options = parser.parse_args()
    try:
        result = measure(options)
    except ImportError as error:
        result = {"missing": str(error)}
    print("RESULT " + json.dumps(result), flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Agent steps from the start of a rollout to that of another, so that whole iterations count."""
    import ale_py
    import gymnasium
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    gymnasium.register_envs(ale_py)
    if options.threads:
        torch.set_num_threads(options.threads)

    class Clock(BaseCallback):
        marks: list[tuple[float, int]] = []  # when the warm-up began, when it ended, and the end

        def _on_rollout_start(self) -> None:
            if self.num_timesteps < options.learning_starts:
                return
            now = time.perf_counter()
            wait = (0.0, options.warm_up_seconds, options.seconds)[len(self.marks)]
            if not self.marks or now - self.marks[-1][0] >= wait:
                self.marks.append((now, self.num_timesteps))

        def _on_step(self) -> bool:
            return len(self.marks) < 3

    clock = Clock()
    model = build(options)
    model.learn(total_timesteps=10**9, callback=clock)
    model.get_env().close()
    _, (start, before), (end, after) = clock.marks
    return {
        "name": "stable-baselines3",
        "version": stable_baselines3.__version__,
        "torch": torch.__version__,
        "agent_steps": after - before,
        "seconds": end - start,
        "agent_steps_per_second": (after - before) / (end - start),
        "threads": torch.get_num_threads(),
        "environments": options.environments,
        "steps": options.steps,
        "learning_starts": options.learning_starts,
        "processes": options.processes,
    }


def build(options: argparse.Namespace) -> Any:
    """The model with its own Atari wrappers: FIRE, no-ops, 4 frames a step, life loss, 84x84 grey, 4 stacked."""
    from stable_baselines3 import A2C, DQN, PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    many = options.processes == "many"
    environment = make_atari_env(
        f"{options.game}NoFrameskip-v4",
        n_envs=options.environments,
        seed=1,
        vec_env_cls=SubprocVecEnv if many else DummyVecEnv,
        vec_env_kwargs={"start_method": "fork"} if many else None,
    )
    environment = VecFrameStack(environment, n_stack=4)
    if options.algorithm == "a2c":
        return A2C("CnnPolicy", environment, n_steps=options.steps, device="cpu")
    if options.algorithm == "dqn":
        return DQN(
            "CnnPolicy",
            environment,
            buffer_size=options.replay,
            optimize_memory_usage=True,
            replay_buffer_kwargs={"handle_timeout_termination": False},
            learning_starts=options.learning_starts,
            train_freq=options.steps,
            gradient_steps=1,
            batch_size=options.minibatch,
            exploration_initial_eps=0.1,
            exploration_final_eps=0.1,
            device="cpu",
        )
    return PPO(
        "CnnPolicy",
        environment,
        n_steps=options.steps,
        n_epochs=options.epochs,
        batch_size=options.minibatch,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        device="cpu",
    )


if __name__ == "__main__":
    main()
