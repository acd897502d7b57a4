"""Another library trains, and tells its agent steps/s, or its agent steps to a score. Run as a file by its own Python.

It imports nothing of this package. The last line of its output is `RESULT` and one JSON object. All of it is in one
file, as these libraries send functions of the main program to processes of their own.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import tempfile
import time
from importlib.metadata import version
from typing import Any, NamedTuple

ABOUT = {
    "game": "Atari game in camel case; stable-baselines3-score: a Gymnasium environment",
    "seconds": "seconds measured, after the warm-up",
    "threads": "threads of torch (0: its own choice)",
    "workers": "processes that run environments",
    "environments": "environments (of each worker, where there are workers)",
    "splits": "groups of environments that take turns",
    "steps": "agent steps of each environment per rollout; DQN: per gradient",
    "replay": "DQN only: transitions in the replay",
    "learning-starts": "DQN only: agent steps before the warm-up",
    "processes": "one (DummyVecEnv) or many (SubprocVecEnv)",
    "agent-steps": "budget in agent steps, over all environments",
    "episodes": "number of last episodes whose mean is the score",
}


def main() -> None:
    """Trains, and prints what was measured or what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    for name, program in PROGRAMS.items():
        options = programs.add_parser(name)
        for option, default in program.options.items():
            options.add_argument(f"--{option}", type=type(default), default=default, help=ABOUT.get(option, ""))
    chosen = parser.parse_args()
    if chosen.threads:
        os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    library = PROGRAMS[chosen.program].library
    try:
        told = PROGRAMS[chosen.program].run(chosen)
        told |= {"name": library, "version": version(library), **_torch()}
    except ImportError as error:
        told = {"missing": str(error)}
    print("\nRESULT " + json.dumps(vars(chosen) | told), flush=True)


def _torch() -> dict[str, Any]:
    import torch

    return {"torch": torch.__version__, "threads": torch.get_num_threads()}


class Clock:
    """The times when the warm-up began, the measurement began and it ended, each with the agent steps until then."""

    def __init__(self, options: argparse.Namespace):
        self._waits = (0.0, options.warm_up_seconds, options.seconds)
        self._marks: list[tuple[float, tuple[int, ...]]] = []

    @property
    def over(self) -> bool:
        """Whether the measurement has ended."""
        return len(self._marks) == len(self._waits)

    def tick(self, *steps: int) -> bool:
        """Notes the agent steps so far, counted in one or more ways; returns whether the measurement has ended."""
        now = time.perf_counter()
        if not self.over and (not self._marks or now - self._marks[-1][0] >= self._waits[len(self._marks)]):
            self._marks.append((now, steps))
        return self.over

    def rates(self) -> dict[str, Any]:
        """Agent steps/s after the warm-up, by the way of counting that gives the fewest steps."""
        _, (start, before), (end, after) = self._marks
        counted = [now - then for then, now in zip(before, after)]
        steps, seconds = min(counted), end - start
        every = {"agent_steps_counted": counted} if len(counted) > 1 else {}
        return {"agent_steps": steps, "seconds": seconds, "agent_steps_per_second": steps / seconds, **every}


# Stable-Baselines3 ----------------------------------------------------------------------------------------------------


def stable_baselines3(options: argparse.Namespace) -> dict[str, Any]:
    """Measures A2C, PPO or DQN from the start of one rollout to that of a later one, so that whole iterations count."""
    from stable_baselines3.common.callbacks import BaseCallback

    clock = Clock(options)

    class Ticks(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= options.learning_starts:
                clock.tick(self.num_timesteps)

        def _on_step(self) -> bool:
            return not clock.over

    model = _model(options)
    model.learn(total_timesteps=10**9, callback=Ticks())
    model.get_env().close()
    return clock.rates()


def _model(options: argparse.Namespace) -> Any:
    """The model with the library's Atari wrappers: FIRE, no-ops, 4 frames a step, life loss, 84x84 gray, 4 stacked."""
    import ale_py
    import gymnasium
    from stable_baselines3 import A2C, DQN, PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    gymnasium.register_envs(ale_py)
    many = options.processes == "many"
    environment = make_atari_env(
        f"{options.game}NoFrameskip-v4",
        n_envs=options.environments,
        seed=1,
        vec_env_cls=SubprocVecEnv if many else DummyVecEnv,
        vec_env_kwargs={"start_method": "fork"} if many else None,
    )
    ppo = {"n_steps": options.steps, "n_epochs": options.epochs, "batch_size": options.minibatch}
    dqn = {"train_freq": options.steps, "learning_starts": options.learning_starts, "batch_size": options.minibatch}
    dqn |= {"buffer_size": options.replay, "optimize_memory_usage": True, "gradient_steps": 1}
    dqn |= {"replay_buffer_kwargs": {"handle_timeout_termination": False}}
    kind, settings = {
        "a2c": (A2C, {"n_steps": options.steps}),
        "ppo": (PPO, ppo | {"learning_rate": 2.5e-4, "clip_range": 0.1, "ent_coef": 0.01}),
        "dqn": (DQN, dqn | {"exploration_initial_eps": 0.1, "exploration_final_eps": 0.1}),
    }[options.algorithm]
    return _unlogged(kind("CnnPolicy", VecFrameStack(environment, n_stack=4), device="cpu", **settings))


def _unlogged(model: Any) -> Any:
    """Replaces the default logger of a Stable-Baselines3 model, which leaves an empty directory behind."""
    from stable_baselines3.common.logger import Logger

    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def stable_baselines3_score(options: argparse.Namespace) -> dict[str, Any]:
    """PPO's agent steps when the mean score of the last training episodes first reached the target, or None."""
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
    _unlogged(model).learn(total_timesteps=options.agent_steps, callback=until)
    mean = sum(scores) / len(scores) if scores else None
    return {"reached": until.reached, "agent_steps": model.num_timesteps, "score": mean}


# Sample Factory -------------------------------------------------------------------------------------------------------


def sample_factory(options: argparse.Namespace) -> dict[str, Any]:
    """Measures APPO (impala: with V-trace) by the agent steps that the learner used between two training steps."""
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    clock = Clock(options)

    class Ticks(AlgoObserver):
        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            if clock.tick(runner.env_steps.get(0, 0)):
                runner.cfg.train_for_env_steps = 0  # ends the training

    register_env("atari", sample_factory_environment)
    with tempfile.TemporaryDirectory() as folder:
        _, runner = make_runner(_sample_factory_settings(options, folder))
        runner.register_observer(Ticks())
        runner.init()
        runner.run()
    return clock.rates()


def _sample_factory_settings(options: argparse.Namespace, folder: str) -> Any:
    """Sample Factory's configuration: the Nature network, asynchronous, one policy, no resampling of old data."""
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


def sample_factory_environment(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Gymnasium's wrappers with gray frames from the emulator: faster here than Sample Factory's, which resize RGB."""
    from gymnasium.wrappers import FrameStack
    from sample_factory.envs.env_wrappers import ClipRewardEnv, FireResetEnv, NumpyObsWrapper

    environment = _gray_atari(cfg.game, FireResetEnv, render_mode=render_mode)
    return NumpyObsWrapper(FrameStack(ClipRewardEnv(environment), 4))


def _gray_atari(game: str, fire_on_reset: Any, render_mode: str | None = None, **preprocessing: Any) -> Any:
    """An Atari game with Gymnasium's preprocessing; `fire_on_reset` wraps games that wait for FIRE to start."""
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing

    if hasattr(gymnasium, "register_envs"):  # before 1.0 the import did it
        gymnasium.register_envs(ale_py)
    environment = gymnasium.make(f"{game}NoFrameskip-v4", render_mode=render_mode)
    environment = AtariPreprocessing(environment, frame_skip=4, terminal_on_life_loss=True, **preprocessing)
    emulator: Any = environment.unwrapped
    return fire_on_reset(environment) if "FIRE" in emulator.get_action_meanings() else environment


# RLlib ----------------------------------------------------------------------------------------------------------------


def rllib(options: argparse.Namespace) -> dict[str, Any]:
    """Measures IMPALA or APPO between two iterations, by the agent steps taken or those learned from (the fewer).

    Ray starts processes of its own, which listen for connections on this machine as long as it runs.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Ray writes a token and results into the home directory, and does not remove them.
        os.environ |= {"HOME": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        import ray

        workers = options.workers + 1  # one processor for each worker and the learner, so that ray starts them all
        cores = max(workers, os.cpu_count() or 1)
        ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        clock, algorithm = Clock(options), _rllib_settings(options).build_algo()
        try:
            while not clock.over:
                steps = _rllib_steps(algorithm.train())
                if min(steps) > 0:
                    clock.tick(*steps)
        finally:
            algorithm.stop()
            ray.shutdown()
    return clock.rates()


def _rllib_steps(result: dict[str, Any]) -> tuple[int, int]:
    """The agent steps taken so far, and those that the learner has used so far."""
    taken = result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0)
    used = result.get("learners", {}).get("default_policy", {}).get("num_module_steps_trained_lifetime", 0)
    return int(taken), int(used)


def _rllib_settings(options: argparse.Namespace) -> Any:
    """RLlib's configuration: the Nature network, one learner in this process, and workers that act meanwhile."""
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    register_env("atari", lambda config: rllib_environment(options.game))
    network = DefaultModelConfig(
        conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
        conv_activation="relu",
        head_fcnet_hiddens=[512],
        head_fcnet_activation="relu",
        vf_share_layers=True,
    )
    # With APPO's circular buffer of batches, each batch would be trained on twice.
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


def rllib_environment(game: str) -> Any:
    """Gymnasium's wrappers with gray frames from the emulator: faster here than RLlib's, which resize every frame."""
    from ray.rllib.env.wrappers.atari_wrappers import FireResetEnv, FrameStack

    return FrameStack(_gray_atari(game, FireResetEnv, grayscale_newaxis=True, scale_obs=True), 4)


# The programs, by their names -----------------------------------------------------------------------------------------


class Program(NamedTuple):
    """A measurement that can be run: the library's name on PyPI, the function, and its options with their defaults."""

    library: str
    run: Any
    options: dict[str, Any]


RATES = {"algorithm": "", "game": "Breakout", "seconds": 20.0, "warm-up-seconds": 5.0, "threads": 0}
PROGRAMS = {
    "stable-baselines3": Program(
        "stable-baselines3", stable_baselines3,
        RATES | {"environments": 16, "steps": 5, "epochs": 4, "minibatch": 256, "replay": 100_000, "learning-starts": 0,
                 "processes": "one"},
    ),
    "stable-baselines3-score": Program(
        "stable-baselines3", stable_baselines3_score,
        {"game": "", "seed": 0, "agent-steps": 0, "target-score": 0.0, "episodes": 0, "environments": 0, "steps": 0,
         "minibatch": 0, "epochs": 0, "learning-rate": 0.0, "discount": 0.0, "gae-lambda": 0.0, "clip-range": 0.0,
         "entropy-cost": 0.0, "threads": 0},
    ),
    "sample-factory": Program(
        "sample-factory", sample_factory,
        RATES | {"workers": 2, "environments": 16, "splits": 2, "steps": 32, "minibatch": 1024, "epochs": 1},
    ),
    "rllib": Program("ray", rllib, RATES | {"workers": 2, "environments": 16, "steps": 20, "minibatch": 500}),
}  # fmt: skip

if __name__ == "__main__":
    main()
