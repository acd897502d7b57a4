"""What other libraries call our options and commands: for suggestions, and for the page of settings."""

from __future__ import annotations

from collections.abc import Collection

from ddrl.checks import did_you_mean, hyphenated

OPTIONS = {
    "adam-eps": "adam-epsilon", "algo": "algorithm", "anneal-lr": "learning-rate-schedule",
    "buffer-size": "replay-capacity", "capture-video": "video", "checkpoint-freq": "checkpoint-every-updates",
    "clip-coef": "clip-range", "clip-param": "clip-range", "clip-range-vf": "value-clip-range",
    "clip-vloss": "value-clip-range", "end-e": "epsilon-end", "ent-coef": "entropy-cost",
    "entropy-coeff": "entropy-cost", "env": "game", "env-config": "game-options", "env-id": "game",
    "env-kwargs": "game-options", "estimation-step": "n-step", "eval-freq": "eval-every-updates",
    "exp-name": "run-dir", "experiment": "run-dir", "exploration-final-eps": "epsilon-end",
    "exploration-fraction": "epsilon-steps", "exploration-initial-eps": "epsilon-start",
    "exploration-loss-coeff": "entropy-cost", "fcnet-hiddens": "hidden-layers", "gamma": "discount",
    "gpus": "gpus-per-node", "grad-clip": "clip-global-norm", "hidden-sizes": "hidden-layers", "lambda": "gae-lambda",
    "learning-starts": "replay-minimum", "log-interval": "log-every-seconds",
    "logdir": "run-dir", "lr": "learning-rate", "max-grad-norm": "clip-global-norm",
    "max-replay-size": "replay-capacity", "min-replay-size": "replay-minimum", "minibatch-size": "batch-size",
    "n-envs": "simulators", "n-epochs": "epochs", "n-eval-episodes": "eval-games", "n-steps": "unroll-length",
    "norm-adv": "normalize-advantages", "num-actors": "actors", "num-env-runners": "workers",
    "num-env-steps": "agent-steps", "num-envs": "simulators", "num-envs-per-env-runner": "simulators",
    "num-envs-per-worker": "simulators", "num-epochs": "epochs", "num-gpus": "gpus-per-node",
    "num-sgd-iter": "epochs", "num-steps": "unroll-length", "num-workers": "workers", "output-dir": "run-dir",
    "policy": "network", "ppo-clip-ratio": "clip-range", "replay-size": "replay-capacity",
    "resume-path": "resume", "reward-threshold": "target-score", "rollout": "unroll-length",
    "rollout-fragment-length": "unroll-length", "save-every-sec": "checkpoint-every-minutes",
    "save-freq": "checkpoint-every-updates", "save-video": "video", "sgd-minibatch-size": "batch-size",
    "start-e": "epsilon-start", "stop-iters": "max-updates", "stop-reward": "target-score",
    "stop-timesteps": "agent-steps", "target-network-frequency": "target-period",
    "target-update-freq": "target-period", "target-update-interval": "target-period", "tau": "target-average",
    "tensorboard-log": "loggers", "torch-deterministic": "deterministic", "total-steps": "agent-steps",
    "total-timesteps": "agent-steps", "track": "loggers", "train-batch-size": "batch-size",
    "train-dir": "run-dir", "train-for-env-steps": "agent-steps", "train-for-seconds": "minutes",
    "train-freq": "steps-per-update", "train-frequency": "steps-per-update", "training-num": "simulators",
    "update-epochs": "epochs", "value-loss-coeff": "value-cost", "vf-clip-param": "value-clip-range",
    "vf-coef": "value-cost", "vf-loss-coeff": "value-cost", "wandb": "loggers", "with-wandb": "loggers",
}  # fmt: skip
"""Names of options in Acme, CleanRL, RLlib, Sample Factory, Stable-Baselines3, and Tianshou -> ours."""
GPUS = ("cuda", "device", "gpu", "gpus", "num-gpus")
"""Names of options elsewhere for which there is none here."""
COMMANDS = {
    "enjoy": "ddrl play RUN", "learn": "ddrl train", "optimize": "ddrl tune", "record": "ddrl play RUN",
    "resume": "ddrl train --resume RUN", "stop": "touch RUN/stop", "sweep": "ddrl tune", "tensorboard": "ddrl board",
    "test": "ddrl evaluate RUN",
}  # fmt: skip
"""What people type after `ddrl` -> the command that does it."""


def meant_by(name: str, known: Collection[str], mark: str = "") -> str:
    """The end of a refusal of an unknown name: '; did you mean --x?', or empty. `mark`, such as --, precedes x.

    The names may be spelled with hyphens or, as in Python, with underscores.
    """
    theirs = hyphenated(name)
    ours = [each for each in known if hyphenated(each) == OPTIONS.get(theirs)]
    if ours:
        return f"; did you mean {mark}{ours[0]}?"
    if theirs in GPUS:
        return "; each worker takes a GPU by itself if there are any, and CUDA_VISIBLE_DEVICES limits them"
    return did_you_mean(name, [mark + each for each in known])
