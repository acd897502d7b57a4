"""What a run has learned, as a policy for its own evaluations and any other loop. Loading one imports TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl import rundir
from ddrl.algorithms import Exploration, algorithm_of, network_for
from ddrl.checkpoint import Checkpoint, check_layout, load, load_latest
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.lazy import quiet_libraries
from ddrl.ops.draws import Draw, draw_for, greedy_actions
from ddrl.resumable import AGENT, check_settings
from ddrl.structured import legal_actions, split_components
from ddrl.types import Continuous

if TYPE_CHECKING:
    from ddrl.envs import VectorEnvironment

BATCH_SIZES = (1, 8, 64)
"""Sizes that observations are padded to; more are cut into pieces."""


class Agent:
    """A policy with frozen parameters, without MPI. `Run.agent()` makes one.

    It takes observations as the run's environments give them, preprocessing and stacked frames included
    (`ddrl.make_environment(run)` gives a game with just these), one or a batch of them [b, ...], and gives actions as
    the game's own `step` takes them. It keeps no state but the count of drawn actions. The rules of an evaluation
    protocol, such as FIRE after 30 identical actions, are those of `Run.evaluate` and not its own.

    Args:
        config: settings of the run.
        checkpoint: of the run.
        environment: of the run's game, for its spaces.
        batch_sizes: padded sizes that the policy is compiled for.
        seed: of the actions that are drawn.

    Attributes:
        config: settings of the run; its compute type is what this agent computes with.
        checkpoint: what the parameters are from.
        network: of the algorithm.
        observation_shape, observation_dtype: of one observation.
        observation_spaces: Gymnasium's space of each field of it, as far as they are known.
        action_space: what the policy gives actions of.
        stamp: protocol of the game with every setting, and versions; JSON-able.
    """

    def __init__(
        self,
        config: TrainConfig,
        checkpoint: Checkpoint,
        environment: VectorEnvironment,
        batch_sizes: Sequence[int] = BATCH_SIZES,
        seed: int = 0,
    ) -> None:
        from ddrl.learner import Policy, as_device_vector

        self.config, self.checkpoint = config, checkpoint
        self.observation_shape = environment.observation_shape
        self.observation_dtype = np.dtype(environment.observation_dtype)
        self.observation_spaces = getattr(environment, "observation_spaces", {})
        self.action_space, self.stamp = environment.action_space, environment.stamp
        self.first_action = getattr(environment, "first_action", 0)
        self._native = getattr(environment, "native_action", None)
        observations = self.observation_shape, self.observation_dtype
        self.network = network_for(config, *observations, self.action_space)
        check_layout(checkpoint, self.network.parameter_shapes)
        self._policy = Policy(self.network, *observations, tuple(batch_sizes))
        self._parameters = as_device_vector(checkpoint.parameters)
        self._draw, self._seed, self._drawn = _draw(config, checkpoint, self.action_space), seed, 0

    def policy(self, observations: np.ndarray) -> np.ndarray:
        """What the network's policy head gives: <float32>[b, P] for observations [b, ...]; see `PolicyValue`."""
        return self._policy(self._parameters, observations)[0]

    def act(self, observation: Any, greedy: bool = True) -> Any:
        """Actions for one observation or a batch.

        Args:
            observation: <observation dtype>[...], or [b, ...].
            greedy: the best actions. False: drawn as in training after so many agent steps: from the policy's
                distribution; in the Q-learning family epsilon-greedily, in DPG with noise, as its least exploring
                simulator does.

        Returns:
            One action, or one for each, in the game's own action space: an integer, an array of several components, or
            floats within the bounds.

        Raises:
            ValueError: the observation has another shape, or a type that cannot be converted without loss; or its mask
                allows no action.
        """
        rows, single = self._rows(observation)
        self._check_legal(rows)
        return _first_if(single, self.taken(self.chosen(rows, greedy)))

    def chosen(self, observations: np.ndarray, greedy: bool = True) -> np.ndarray:
        """Actions as `VectorEnvironment.send` takes them, for observations [b, ...]; see `act`."""
        outputs = self.policy(observations)
        if greedy:
            return greedy_actions(self.action_space, outputs)
        counts = np.full(len(observations), self._drawn, np.int64)
        actions, _ = self._draw(outputs, self._seed, np.arange(len(observations)), counts)
        self._drawn += 1
        return actions

    def values(self, observation: Any) -> Any:
        """The value of states <float32>, as the algorithm learns it: of the largest Q in the Q-learning family."""
        rows, single = self._rows(observation)
        return _first_if(single, self._policy(self._parameters, rows)[1])

    def probabilities(self, observation: Any) -> np.ndarray:
        """Probabilities of the actions <float32>[A], or [b, A]; those of several components one after the other.

        Raises:
            UsageError: the algorithm has values of actions, or continuous actions.
        """
        if self.network.head is not None or isinstance(self.action_space, Continuous):
            others = "values" if self.network.head is None else "q_values or values"
            raise UsageError(f"{self.config.title} has no action probabilities here; ask for {others}")
        rows, single = self._rows(observation)
        components = split_components(self.action_space, self.policy(rows))
        return _first_if(single, np.concatenate([_softmax(logits) for logits in components], axis=1))

    def q_values(self, observation: Any) -> np.ndarray:
        """Expected return of each action <float32>[A], or [b, A].

        Raises:
            UsageError: the algorithm learns a policy.
        """
        if self.network.head is None:
            others = "values" if isinstance(self.action_space, Continuous) else "probabilities or values"
            raise UsageError(f"{self.config.title} has no action values; ask for {others}")
        rows, single = self._rows(observation)
        return _first_if(single, self.policy(rows))

    def export(self, path: str | os.PathLike[str], observations: int = 1000) -> dict[str, Any]:
        """Writes the agent for use without ddrl: ONNX where the name ends in .onnx (extra `onnx`), else a TensorFlow
        SavedModel; see `ddrl.evaluation.export`. What is written is loaded again and compared with this agent first.
        PATH.json beside it says what it is of, and what it takes and gives.

        Args:
            path: where nothing is yet, and nothing of that name with .json.
            observations: of the run's game, with which it is compared.

        Returns:
            What was compared: observations, same_actions, largest_difference.

        Raises:
            UsageError: something is there, a package is missing, or the copy acts differently.
            OSError: it cannot be written there.
        """
        from ddrl.evaluation.export import export

        return export(self, Path(path), observations)

    def taken(self, actions: np.ndarray) -> np.ndarray:
        """Actions of the policy [b, ...] as the game's `step` takes them."""
        from ddrl.envs.spaces import check_actions

        actions = check_actions(actions, self.action_space, len(actions))
        actions = actions + self.first_action if self.first_action else actions
        return actions if self._native is None else np.stack([self._native(action) for action in actions])

    def _rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations [b, ...] of the network's type, and whether there was a single one."""
        rows = np.asarray(observation)
        single = rows.shape == self.observation_shape
        if not single and rows.shape[1:] != self.observation_shape:
            shape = self.observation_shape
            raise ValueError(
                f"an observation of shape {rows.shape}, not {shape} or [b, *{shape}]: ddrl.make_environment(run) gives "
                "observations as in training"
            )
        if not single and not len(rows):
            raise ValueError("a batch without observations")
        if rows.dtype.hasobject or not np.can_cast(rows.dtype, self.observation_dtype, "same_kind"):
            raise ValueError(
                f"an observation of type {rows.dtype}, and the network takes {self.observation_dtype}: "
                "ddrl.make_environment(run) gives observations as in training"
            )
        return (rows[None] if single else rows).astype(self.observation_dtype, copy=False), single

    def _check_legal(self, rows: np.ndarray) -> None:
        mask = legal_actions(rows)
        if mask is None or isinstance(self.action_space, Continuous):
            return
        parts = split_components(self.action_space, mask)
        none = np.flatnonzero(~np.all([part.any(axis=1) for part in parts], axis=0))
        if len(none):
            of = f" (observation {none[0]})" if len(rows) > 1 else ""
            raise ValueError(f"an action_mask of zeros, which allows no action: give the mask of the game{of}")


def load_agent(
    path: Path,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    *,
    checkpoint: Path | None = None,
    seed: int = 0,
    compute_dtype: str = "",
) -> Agent:
    """Loads a checkpoint of the run in `path`.

    Args:
        path: run directory.
        batch_sizes: padded sizes that the policy is compiled for.
        checkpoint: which (None: the newest sound one).
        seed: of the actions that are drawn.
        compute_dtype: of activations (empty: the run's own). In float32 an agent and its exports agree to rounding,
            which bfloat16 has too few digits for.

    Raises:
        UsageError: when `path` is no run, or has no checkpoint that fits.
    """
    config = rundir.load_config(path)
    loaded = load_latest(path) if checkpoint is None else load(checkpoint)
    check_settings(loaded, config, path, AGENT)
    if compute_dtype:
        config = config.changed(network={"compute_dtype": compute_dtype})
    from ddrl.envs import make_environment

    with (
        quiet_libraries(),
        contextlib.closing(make_environment(config.environment, num_envs=1, training=False)) as environment,
    ):
        return Agent(config, loaded, environment, batch_sizes, seed)


def _draw(config: TrainConfig, checkpoint: Checkpoint, space: Any) -> Draw:
    """How training draws actions after as many agent steps as the checkpoint has, on the last place of a ladder."""
    draw = algorithm_of(config.algorithm).draw
    if draw is None:
        return draw_for(space)
    minimum = config.replay.replay_minimum if config.has_replay_in_workers else 0  # actors of Ape-X do not wait for it
    each = max(0, checkpoint.agent_steps // config.acting_ranks - minimum)
    return draw(
        config.algorithm,
        Exploration(
            space,
            agent_steps=lambda counts: np.full(len(counts), each),
            places=lambda ids: np.ones(len(ids)),
            mean=lambda name, value, count: None,
        ),
    )


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _first_if(single: bool, rows: np.ndarray) -> Any:
    return rows[0] if single else rows
