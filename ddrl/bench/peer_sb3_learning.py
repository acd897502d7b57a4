"""How many agent steps Stable-Baselines3's PPO needs to a score. Run as a file by a Python that has it.

It imports nothing of this package. The last line of its output is `RESULT` and one JSON object.
"""

from __future__ import annotations

import argparse
import collections
import json
from typing import Any


def main() -> None:
    """Trains until the score or the budget is reached, and prints what was found or what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--agent-steps", type=int, required=True, help="budget over all environments")
    parser.add_argument("--target-score", type=float, required=True)
    parser.add_argument("--episodes", type=int, required=True, help="the last ones, over which the score is the mean")
    parser.add_argument("--environments", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of each environment per rollout")
    parser.add_argument("--minibatch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--discount", type=float, required=True)
    parser.add_argument("--gae-lambda", type=float, required=True)
    parser.add_argument("--clip-range", type=float, required=True)
    parser.add_argument("--entropy-cost", type=float, required=True)
    options = parser.parse_args()
    try:
        result = learn(options)
    except ImportError as error:
        result = {"missing": str(error)}
    print("RESULT " + json.dumps(result), flush=True)


def learn(options: argparse.Namespace) -> dict[str, Any]:
    """Agent steps when the mean score of the last training episodes first reached the target; None where it did not."""
    import stable_baselines3
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    scores: collections.deque[float] = collections.deque(maxlen=options.episodes)

    class Until(BaseCallback):
        reached: int | None = None

        def _on_step(self) -> bool:
            scores.extend(float(info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info)
            if len(scores) == options.episodes and sum(scores) / len(scores) >= options.target_score:
                self.reached = self.num_timesteps
            return self.reached is None

    model = PPO(
        "MlpPolicy",
        make_vec_env(options.game, n_envs=options.environments, seed=options.seed),
        device="cpu",
        n_steps=options.steps,
        batch_size=options.minibatch,
        n_epochs=options.epochs,
        gamma=options.discount,
        learning_rate=options.learning_rate,
        gae_lambda=options.gae_lambda,
        clip_range=options.clip_range,
        ent_coef=options.entropy_cost,
        seed=options.seed,
    )
    until = Until()
    model.learn(total_timesteps=options.agent_steps, callback=until)
    return {
        "name": "stable-baselines3",
        "version": stable_baselines3.__version__,
        "reached": until.reached,
        "agent_steps": model.num_timesteps,
        "score": sum(scores) / len(scores) if scores else None,
    }


if __name__ == "__main__":
    main()
