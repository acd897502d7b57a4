"""A Gymnasium environment of any spaces as one whose observations are arrays, and whose actions are as policies draw
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from ddrl.envs.observations import ObservationFormat, is_plain
from ddrl.envs.spaces import action_space_of, action_taker, legal_components
from ddrl.errors import UsageError, in_one_line, raised_at
from ddrl.structured import ACTION_MASK
from ddrl.types import Continuous, MultiDiscrete

PROBE_SEED = 0  # of the reset that shows whether an environment gives masks
STEP_VALUES = 5  # that a step gives


class Adapted(gymnasium.Wrapper):
    """Observations as arrays of `format`, with the mask of legal actions among them where the environment gives one.

    A mask is `info["action_mask"]` of each reset and step, or the entry `action_mask` of a Dict: a number for each
    action, not 0 where it is legal; of several components one after the other, as one array or as a tuple of arrays.
    That of a MultiBinary has two numbers for each component, or one as Gymnasium's own: 0 or 1 where the component must
    be that, and 2 where it is free. An episode's last step needs no mask.

    Args:
        env: of any spaces that ddrl knows.
        game: for errors.
        masked: whether it gives masks.

    Attributes:
        format: of the observations.
        native_action: from an action as a policy draws it to one of the game's own space; None where they are the same.
        takes_native_actions: whether `step` takes the latter; it does not, unless somebody sets it.

    Raises:
        UsageError: a space that nobody handles.
    """

    def __init__(self, env: gymnasium.Env, game: str, masked: bool) -> None:
        super().__init__(env)
        self._game, self._masked = game, masked
        self._space = action_space_of(game, env.action_space)
        self.native_action = action_taker(env.action_space)
        self.takes_native_actions = False
        self._binary = isinstance(env.action_space, gymnasium.spaces.MultiBinary)
        self._observed = _has_mask(env.observation_space)
        space = _without_mask(env.observation_space) if masked and self._observed else env.observation_space
        self.format = ObservationFormat(game, space, self._space.head_size if masked else 0)
        self._steps = 0

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        """As the environment's."""
        observation, info = start_of(self._game, self.env.reset(**options))
        self._steps = 0
        return self.format.array(observation, self._mask(observation, info, False)), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict]:
        """As the environment's, of an action as the policy draws it, or of a native one."""
        if self.native_action is not None and not self.takes_native_actions:
            action = self.native_action(action)
        row = self.env.step(action)
        check_step(self._game, row)
        observation, reward, terminated, truncated, info = row
        self._steps += 1
        mask = self._mask(observation, info, bool(terminated or truncated))
        return self.format.array(observation, mask), reward, terminated, truncated, info

    def _mask(self, observation: Any, info: dict, ended: bool) -> np.ndarray | None:
        """<bool>[A]. Raises UsageError where there is none, or a wrong one."""
        inside = self._observed and self._masked and isinstance(observation, Mapping)
        given = (observation if inside else info).get(ACTION_MASK)
        if not self._masked:
            if given is not None and not isinstance(self._space, Continuous):
                raise self._wrong("gave an action_mask, but none with its first reset; give one with each reset, too")
            return None
        if given is None:
            if ended:
                return np.ones(self._space.head_size, bool)
            raise self._wrong("gave no action_mask, but one with its first reset; give one with every reset and step")
        mask = self._flat(given)
        if all(part.any() for part in legal_components(self._space, mask)):
            return mask
        if ended:
            return np.ones(self._space.head_size, bool)
        raise self._wrong("allows no action (its action_mask has only zeros); end the episode there")

    def _flat(self, given: Any) -> np.ndarray:
        mask = np.concatenate([np.ravel(part) for part in given]) if isinstance(given, tuple) else np.ravel(given)
        size = self._space.head_size
        if self._binary and isinstance(self._space, MultiDiscrete) and len(mask) == len(self._space.counts):
            mask = np.stack([mask != 1, mask != 0], axis=1).ravel()
        if len(mask) != size:
            raise self._wrong(f"gave an action_mask of {len(mask)} entries for {size} actions")
        return mask != 0

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"{self._game} at step {self._steps} of an episode {what}")


def adapted(env: gymnasium.Env, game: str, masked: bool) -> gymnasium.Env:
    """The environment, adapted where it needs to be.

    Args:
        env: any.
        game: for errors.
        masked: whether it gives masks of legal actions.

    Raises:
        UsageError: a space that nobody handles.
    """
    if masked or not is_plain(env.observation_space) or action_taker(env.action_space) is not None:
        return Adapted(env, game, masked)
    return env


def may_give_masks(env: gymnasium.Env, game: str) -> bool:
    """Whether its actions are ones that a mask can tell of; continuous ones are all legal."""
    return not isinstance(action_space_of(game, env.action_space), Continuous)


def gives_masks(env: gymnasium.Env, game: str) -> bool:
    """Whether its observations or, as a reset shows, its `info` have a mask of legal actions.

    Raises:
        UsageError: the reset fails, or gives something else than a reset gives.
    """
    if not may_give_masks(env, game):
        return False
    return _has_mask(env.observation_space) or ACTION_MASK in _first_start(env, game)[1]


def _first_start(env: gymnasium.Env, game: str) -> tuple[Any, dict]:
    try:
        given = env.reset(seed=PROBE_SEED)
    except (UsageError, MemoryError, OSError):  # which say by themselves what to do
        raise
    except Exception as error:  # whatever an environment of a user raises
        failed = f"{in_one_line(error)}{raised_at(error)}"
        raise UsageError(f"{game} fails at its first reset: {failed}; fix the environment") from error
    return start_of(game, given)


def start_of(game: str, given: Any) -> tuple[Any, dict]:
    """Observation and info that a reset gave. Raises UsageError where it gave something else, as those of Gym did."""
    if isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[1], dict):
        return given[0], given[1]
    kind = type(given).__name__
    raise UsageError(f"{game} gave a {kind} from its reset: have it return (observation, info), where info is a dict")


def check_step(game: Any, given: tuple) -> None:
    """Raises UsageError where a step gave other than five values, as those of Gym did."""
    if len(given) != STEP_VALUES:
        whole = "(observation, reward, terminated, truncated, info)"
        raise UsageError(f"{game} gave {len(given)} values from its step: have it return {whole}")


def _has_mask(space: gymnasium.Space) -> bool:
    return isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces


def _without_mask(space: Any) -> gymnasium.spaces.Dict:
    return gymnasium.spaces.Dict([(key, inner) for key, inner in space.spaces.items() if key != ACTION_MASK])
