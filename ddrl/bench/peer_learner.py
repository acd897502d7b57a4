"""Stable-Baselines3 learns a game with the settings of its zoo. Run as a file by the Python of an environment that has
it; of this package it loads files.py and peer_zoo.py alone, and it prints records such as those of a run's
metrics.jsonl, a line each.

The clock stands still while games are played for an evaluation: only training counts. SIGTERM saves the model; the same
command goes on from there, with new games and, for DQN, an empty replay.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import math
import runpy
import signal
import sys
import time
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

MISSING, STOPPED = 3, 4  # exit statuses
ONLINE_EPISODES = 100
PROMISING = 20  # newest training games: once their mean reaches the target, an evaluation is made early
LEAST_BETWEEN_SECONDS = 60.0  # of training between an early evaluation and the evaluation before it
RECORD = "RECORD "
STATE, MODEL = "state.json", "model.pt"


def loaded(file: str) -> types.SimpleNamespace:
    """What a file of this package defines. It is run by its path, as this Python need not have ddrl."""
    return types.SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / file)))


files, zoo = loaded("files.py"), loaded("bench/peer_zoo.py")


def main() -> int:
    """Learns until the target, the end of a budget, or SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=tuple(zoo.ZOO))
    parser.add_argument("--game", help="CartPole-v1, HalfCheetah-v5, or an Atari game in camel case with --atari")
    parser.add_argument("--atari", action="store_true")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--target", type=float, help="mean score of an evaluation at which the run ends")
    parser.add_argument("--go-on", action="store_true", help="continue when the target is reached")
    parser.add_argument("--minutes", type=float, default=0.0, help="minutes of training (0: no limit)")
    parser.add_argument("--agent-steps", type=int, default=0, help="agent steps (0: the zoo's number)")
    parser.add_argument("--games", type=int, help="games of an evaluation")
    parser.add_argument("--eval-every-minutes", type=float, help="minutes of training between evaluations")
    parser.add_argument("--line-seconds", type=float, help="seconds of training between records")
    parser.add_argument("--replay", type=int, default=0, help="most transitions in DQN's replay (0: the zoo's)")
    options = parser.parse_args()
    try:
        import stable_baselines3  # noqa: F401
    except ImportError as error:
        print(error, file=sys.stderr)
        return MISSING
    return Learner(options).learn()


class Stopped(Exception):
    """SIGTERM came while games were played."""


class Games:
    """The environments by the zoo's protocol: those for training, and those for evaluations by raw scores of games."""

    def __init__(self, options: argparse.Namespace, settings: dict[str, Any]):
        self._options, self._normalizes = options, settings.pop("normalize", False)
        self._discount = settings.get("gamma", 0.99)
        self.training = self._make(settings.pop("n_envs"), options.seed)
        self._whole = self._make(8 if options.atari else 1, options.seed + 10_000, for_scores=True)

    def _make(self, count: int, seed: int, for_scores: bool = False) -> Any:
        """Makes a vector of `count` environments.

        Atari games have the zoo's wrappers in evaluations, too: the monitor below them sees the raw scores of games.
        """
        from stable_baselines3.common.env_util import make_atari_env, make_vec_env
        from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

        if self._options.atari:
            import ale_py
            import gymnasium

            gymnasium.register_envs(ale_py)
            name = f"{self._options.game}NoFrameskip-v4"
            return VecFrameStack(make_atari_env(name, n_envs=count, seed=seed), n_stack=4)
        games = make_vec_env(self._options.game, n_envs=count, seed=seed)
        if not self._normalizes:
            return games
        return VecNormalize(games, training=not for_scores, norm_reward=not for_scores, gamma=self._discount)

    def scores(self, model: Any, watch: Any) -> list[float]:
        """Plays whole games and returns their raw scores.

        On Atari, actions are drawn from the policy, as in the zoo; elsewhere the policy is greedy. DQN plays with the
        final epsilon of its schedule, whatever the epsilon of training is at the time. `watch` is called at each step.
        """
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import sync_envs_normalization

        if self._normalizes:
            sync_envs_normalization(self.training, self._whole)
        if self._options.atari:
            for environment in self._whole.unwrapped.envs:  # else games that older parameters began would go on
                environment.set_wrapper_attr("was_real_done", True)
        greedy, epsilon = not self._options.atari, getattr(model, "exploration_rate", None)
        if epsilon is not None:
            model.exploration_rate = model.exploration_final_eps
        try:
            scores, _ = evaluate_policy(
                model, self._whole, self._options.games, greedy, callback=watch, return_episode_rewards=True
            )
        finally:
            if epsilon is not None:
                model.exploration_rate = epsilon
        return [float(score) for score in scores]

    def statistics(self) -> dict[str, Any]:
        """The running statistics of the normalization, in JSON types; empty without normalization."""
        if not self._normalizes:
            return {}
        both = {"obs_rms": self.training.obs_rms, "ret_rms": self.training.ret_rms}
        return {
            name: {"mean": rms.mean.tolist(), "var": rms.var.tolist(), "count": float(rms.count)}
            for name, rms in both.items()
        }

    def use(self, statistics: dict[str, Any]) -> None:
        """Restores what `statistics` returned."""
        import numpy as np

        for name, values in statistics.items():
            rms = getattr(self.training, name)
            rms.mean, rms.var, rms.count = np.array(values["mean"]), np.array(values["var"]), values["count"]


class Learner:
    """One run: its model, clock and records."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.directory = options, options.directory
        settings = zoo.settings_of(options.algorithm, options.game, options.atari)
        self._zoo = json.loads(json.dumps(settings))
        self.horizon = int(settings.pop("n_timesteps"))
        self.games = Games(options, settings)
        self.model = self._new_model(settings)
        state = self._load()
        self._before, self._began, self._paused = state.get("seconds", 0.0), time.monotonic(), 0.0
        self._next_line = 0.0
        self._next_evaluation = state.get("next_evaluation", self.seconds + 60 * options.eval_every_minutes)
        self._evaluated_at, self._evaluated_steps = -LEAST_BETWEEN_SECONDS, -1
        self._evaluation_seconds: float | None = state.get("evaluation_seconds")  # duration of the newest evaluation
        self._first_steps = self.model.num_timesteps
        self._last_line: tuple[float, int] | None = None
        self.online: collections.deque[float] = collections.deque(maxlen=ONLINE_EPISODES)
        self.status, self.stopped, self._reached = "", False, options.go_on and state.get("reached", False)

    @property
    def seconds(self) -> float:
        """Wall time of training without evaluations, including the parts before a resume."""
        return self._before + time.monotonic() - self._began - self._paused

    def learn(self) -> int:
        """Trains until the run ends or is stopped; returns the exit status."""
        from stable_baselines3.common.callbacks import BaseCallback

        learner = self

        class Watch(BaseCallback):
            def _on_step(self) -> bool:
                return learner.on_step([info["episode"]["r"] for info in self.locals["infos"] if "episode" in info])

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        budget = self.options.agent_steps or self.horizon
        left = max(0, budget - self.model.num_timesteps)
        if left:
            self.model.learn(left, callback=Watch(), reset_num_timesteps=False)
        if not self.status and not self.stopped:
            self.status = "finished"
            self.evaluate()
        self._save()
        self._line()
        if self.stopped:
            return STOPPED
        say({"kind": "result", "status": self.status, "agent_steps": self.model.num_timesteps,
             "wall_seconds": self.seconds, "peer": self._about()})  # fmt: skip
        return 0

    def on_step(self, scores: list[float]) -> bool:
        """Writes records and evaluates when they are due, after a step of all environments; whether training goes on.

        Args:
            scores: the raw scores of the games that ended with this step.
        """
        self.online.extend(scores)
        now = self.seconds
        if now >= self._next_line:
            self._line()
            self._next_line = now + self.options.line_seconds
        if self._due(now):
            self.evaluate()
            self._save()
        if self.options.minutes and now >= 60 * self.options.minutes and not self.status:
            self.status = "finished"
            if self._evaluated_steps != self.model.num_timesteps:
                self.evaluate()
        return not self.status and not self.stopped

    def _due(self, now: float) -> bool:
        """Whether to evaluate now: at regular times, and when the training games suggest that the target is reached."""
        if now >= self._next_evaluation:
            return True
        if self.options.target is None or self._reached or len(self.online) < PROMISING:
            return False
        recent = list(self.online)[-PROMISING:]
        return sum(recent) / len(recent) >= self.options.target and now - self._evaluated_at >= LEAST_BETWEEN_SECONDS

    def evaluate(self) -> None:
        """Plays whole games while the clock stands still; ends the run if their mean reaches the target."""
        paused, seconds = time.monotonic(), self.seconds
        try:
            scores = self.games.scores(self.model, self._watch)
        except Stopped:
            return
        finally:
            self._paused += time.monotonic() - paused
        took = self._evaluation_seconds = round(time.monotonic() - paused, 3)
        mean = sum(scores) / len(scores)
        record = {"kind": "evaluation", "wall_seconds": seconds, "mean": mean, "seconds": took,
                  "maximum": max(scores), "games": len(scores), "agent_steps": self.model.num_timesteps,
                  "version": self.model.num_timesteps, "update": self.model.num_timesteps}  # fmt: skip
        say(record)
        self._evaluated_at, self._evaluated_steps = seconds, self.model.num_timesteps
        self._next_evaluation = seconds + 60 * self.options.eval_every_minutes
        self._reached = self._reached or (self.options.target is not None and mean >= self.options.target)
        if self._reached and not self.options.go_on:
            self.status = "target"

    def _line(self) -> None:
        seconds, steps = self.seconds, self.model.num_timesteps
        record = {"kind": "train", "wall_seconds": seconds, "agent_steps": steps,
                  "update": steps, "episodes": len(self.online)}  # fmt: skip
        if self.online:
            record["online_score_mean"] = sum(self.online) / len(self.online)
        if self._last_line is not None and seconds > self._last_line[0]:
            record["agent_steps_per_s"] = (steps - self._last_line[1]) / (seconds - self._last_line[0])
        if (left := self.seconds_left(seconds)) is not None:
            record["seconds_left"] = round(left, 1)
        self._last_line = seconds, steps
        say(record)

    def seconds_left(self, now: float) -> float | None:
        """Estimated wall time until the run ends: training, and the regular evaluations that are still to come.

        Each evaluation is taken to be as long as the newest one. None before the first evaluation, or while the time
        that training takes is unknown. It does not foresee that the run ends early at the target, nor evaluations
        because of promising scores.

        Args:
            now: the clock of training, in seconds.
        """
        if self.status:
            return 0.0
        training = self._training_left(now)
        if training is None or self._evaluation_seconds is None:
            return None
        regular = math.ceil((training - (self._next_evaluation - now)) / (60 * self.options.eval_every_minutes))
        return training + (max(0, regular) + 1) * self._evaluation_seconds  # + 1: the evaluation at the end

    def _training_left(self, now: float) -> float | None:
        """Seconds of training until a budget is used up; None if that is one of steps whose rate is unknown yet."""
        lefts = [60 * self.options.minutes - now] if self.options.minutes else []
        steps = self.model.num_timesteps
        if steps > self._first_steps and now > self._before:
            budget = self.options.agent_steps or self.horizon
            lefts.append((budget - steps) * (now - self._before) / (steps - self._first_steps))
        return max(0.0, min(lefts)) if lefts else None

    def _stop(self, number: int, frame: object) -> None:
        self.stopped = True

    # files ------------------------------------------------------------------------------------------------------------

    def _new_model(self, settings: dict[str, Any]) -> Any:
        import stable_baselines3
        from stable_baselines3.common.logger import Logger
        from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
        from torch import nn

        objects = {"RMSpropTFLike": RMSpropTFLike, "ReLU": nn.ReLU}
        network = {
            name: objects[value] if isinstance(value, str) else value
            for name, value in settings.pop("policy_kwargs", {}).items()
        }
        for name, value in settings.items():
            if isinstance(value, str):
                settings[name] = linear(float(value.removeprefix("lin_")))
        if self.options.algorithm == "dqn":
            settings["buffer_size"] = min(settings["buffer_size"], self.options.replay or settings["buffer_size"])
        kind = getattr(stable_baselines3, self.options.algorithm.upper())
        policy = "CnnPolicy" if self.options.atari else "MlpPolicy"
        model = kind(
            policy, self.games.training, seed=self.options.seed, device="cpu", policy_kwargs=network, **settings
        )
        model.set_logger(Logger(folder=None, output_formats=[]))  # the default logger leaves a directory behind
        return model

    def _save(self) -> None:
        """Saves model, optimizer and clock, each file whole or not at all. Raises OSError with the path of the file."""
        import torch

        model = io.BytesIO()
        torch.save(self.model.get_parameters(), model)
        files.write_whole(self.directory / MODEL, model.getvalue())
        state = {"settings": self._zoo, "seconds": self.seconds, "statistics": self.games.statistics(),
                 "agent_steps": self.model.num_timesteps, "evaluation_seconds": self._evaluation_seconds,
                 "next_evaluation": self._next_evaluation, "reached": self._reached}  # fmt: skip
        files.write_whole(self.directory / STATE, json.dumps(state).encode())

    def _load(self) -> dict[str, Any]:
        """Loads what `_save` wrote into the model and returns the saved state; empty for a new run."""
        import torch

        path = self.directory / STATE
        if not path.exists():
            return {}
        state: dict[str, Any] = json.loads(files.read_regular(path))
        if state.get("settings") != self._zoo:
            raise SystemExit(f"{path}: the run began with other settings of the zoo; remove {path.parent}")
        # weights_only: loads tensors and numbers, and no arbitrary Python objects
        model = io.BytesIO(files.read_regular(self.directory / MODEL))
        self.model.set_parameters(torch.load(model, weights_only=True))
        self.model.num_timesteps = state["agent_steps"]
        if hasattr(self.model, "learning_starts"):
            refill(self.model, state["agent_steps"])
        self.games.use(state["statistics"])
        say({"kind": "event", "name": "resumed", "text": f"from agent step {state['agent_steps']}",
             "wall_seconds": state["seconds"], "update": state["agent_steps"]})  # fmt: skip
        return state

    def _watch(self, *step: Any) -> None:
        if self.stopped:
            raise Stopped

    def _about(self) -> dict[str, Any]:
        import torch

        names = ("stable-baselines3", "torch", "gymnasium", "ale-py")
        return {name: version(name) for name in names} | {"threads": torch.get_num_threads()}


def refill(model: Any, agent_steps: int) -> None:
    """Makes a resumed DQN first fill its empty replay by acting with its learned policy, before it learns again."""
    warm_up, act = model.learning_starts, model._sample_action  # noqa: SLF001  (there is no public way)
    model.learning_starts = agent_steps + warm_up  # no updates until then; random actions only in the warm-up
    model._sample_action = lambda learning_starts, *rest: act(warm_up, *rest)  # noqa: SLF001  (the same)


def say(record: dict[str, Any]) -> None:
    """Prints a record, marked with RECORD, for the program that started this one."""
    print(RECORD + json.dumps(record), flush=True)


def linear(first: float) -> Any:
    """A schedule from `first` at the beginning to 0 at the end: a function of the share of the run that is left."""
    return lambda left: left * first


if __name__ == "__main__":
    sys.exit(main())
