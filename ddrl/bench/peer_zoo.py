"""The settings of Stable-Baselines3's zoo: its table, and what it has for an algorithm and a game.

`peer_learner` loads this file by its path, so it needs nothing but Python.
"""

from __future__ import annotations

from typing import Any

# Settings of rl-baselines3-zoo, hyperparams/{ppo,a2c,dqn}.yml at commit 22e3ff2 (2026-04-23).
MUJOCO_NETWORK = {"log_std_init": -2.0, "ortho_init": False, "activation_fn": "ReLU",
                  "net_arch": {"pi": [256, 256], "vf": [256, 256]}}  # fmt: skip
ZOO: dict[str, dict[str, dict[str, Any]]] = {
    "a2c": {
        "atari": {"n_envs": 16, "n_timesteps": 1e7, "ent_coef": 0.01, "vf_coef": 0.25,
                  "policy_kwargs": {"optimizer_class": "RMSpropTFLike", "optimizer_kwargs": {"eps": 1e-5}}},
        "CartPole-v1": {"n_envs": 8, "n_timesteps": 5e5, "ent_coef": 0.0},
    },
    "ppo": {
        "atari": {"n_envs": 8, "n_timesteps": 1e7, "n_steps": 128, "n_epochs": 4, "batch_size": 256,
                  "learning_rate": "lin_2.5e-4", "clip_range": "lin_0.1", "vf_coef": 0.5, "ent_coef": 0.01},
        "CartPole-v1": {"n_envs": 8, "n_timesteps": 1e5, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8,
                        "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0, "learning_rate": "lin_0.001",
                        "clip_range": "lin_0.2"},
        "HalfCheetah": {"normalize": True, "n_envs": 1, "n_timesteps": 1e6, "batch_size": 64, "n_steps": 512,
                        "gamma": 0.98, "learning_rate": 2.0633e-05, "ent_coef": 0.000401762, "clip_range": 0.1,
                        "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8, "vf_coef": 0.58096,
                        "policy_kwargs": MUJOCO_NETWORK},
        "Hopper": {"normalize": True, "n_envs": 1, "n_timesteps": 1e6, "batch_size": 32, "n_steps": 512,
                   "gamma": 0.999, "learning_rate": 9.80828e-05, "ent_coef": 0.00229519, "clip_range": 0.2,
                   "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7, "vf_coef": 0.835671,
                   "policy_kwargs": MUJOCO_NETWORK},
    },
    "dqn": {
        "atari": {"n_envs": 1, "n_timesteps": 1e7, "buffer_size": 100_000, "learning_rate": 1e-4, "batch_size": 32,
                  "learning_starts": 100_000, "target_update_interval": 1000, "train_freq": 4, "gradient_steps": 1,
                  "exploration_fraction": 0.1, "exploration_final_eps": 0.01},
        "CartPole-v1": {"n_envs": 1, "n_timesteps": 5e4, "learning_rate": 2.3e-3, "batch_size": 64,
                        "buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99, "target_update_interval": 10,
                        "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
                        "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]}},
    },
}  # fmt: skip


def settings_of(algorithm: str, game: str, atari: bool) -> dict[str, Any]:
    """The zoo's settings for an algorithm and a game. Raises KeyError if it has none for the game."""
    return dict(ZOO[algorithm]["atari" if atari else game if game in ZOO[algorithm] else game.rpartition("-v")[0]])
