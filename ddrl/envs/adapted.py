"""A wrapper for Gymnasium environments of any spaces: observations become arrays, and actions are taken as policies
draw them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from ddrl.envs.observations import NUMBERS, ObservationFormat, short
from ddrl.envs.spaces import action_space_of, action_taker
from ddrl.errors import UsageError, in_one_line, raised_at, raised_in, says_what_to_do
from ddrl.structured import ACTION_MASK, split_components
from ddrl.types import Continuous, MultiDiscrete

PROBE_SEED = 0  # seed of the reset that shows whether an environment gives masks
STEP_VALUES = 5  # values that Gymnasium's step returns
NOTHING_OR_TEXT = (type(None), str)  # types that NumPy would take for NaN, False, True, or a number


class Adapted(gymnasium.Wrapper):
    """Gives observations as arrays of `format`, which hold the mask of legal actions if the environment gives one.

    A mask is `info["action_mask"]` of each reset and step, or the entry `action_mask` of a Dict observation. It has a
    number for each action, which is not 0 if the action is legal. The masks of several components stand one after the
    other in one array, or are a tuple of arrays, or of such tuples. The mask of a MultiBinary has two numbers for each
    component, or one as in Gymnasium: 0 or 1 if the component must have that value, 2 if it is free. An episode's last
    step needs no mask.

    Args:
        env: an environment of any spaces that ddrl supports.
        game: its name, for errors.
        masked: whether it gives masks.

    Attributes:
        format: the format of the observations.
        native_action: converts an action as a policy draws it to one of the game's own space; None if they are the
            same. See `action_taker`.
        takes_native_actions: whether `step` takes actions of the game's own space; False unless a caller sets it.

    Raises:
        UsageError: an unsupported space.
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
        """Resets the environment; the observation is an array of `format`."""
        observation, info = start_of(self._game, self.env.reset(**options))
        self._steps = 0
        return self.format.array(observation, self._mask(observation, info, False)), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict]:
        """Steps the environment with an action as the policy draws it, or a native one (`takes_native_actions`)."""
        if self.native_action is not None and not self.takes_native_actions:
            action = self.native_action(action)
        row = self.env.step(action)
        check_step(self._game, row)
        observation, reward, terminated, truncated, info = row
        self._steps += 1
        mask = self._mask(observation, info, bool(terminated or truncated))
        return self.format.array(observation, mask), reward, terminated, truncated, info

    def _mask(self, observation: Any, info: dict, ended: bool) -> np.ndarray | None:
        """The mask <bool>[A]; None without masks. Raises UsageError if it is missing or wrong."""
        if not self._masked:
            return None
        inside = self._observed and isinstance(observation, Mapping)
        given = (observation if inside else info).get(ACTION_MASK)
        if given is None:
            if ended:
                return np.ones(self._space.head_size, bool)
            raise self._wrong("gave no action_mask, but its first reset gave one; give one with every reset and step")
        mask = self._flat(given)
        if all(part.any() for part in split_components(self._space, mask)):
            return mask
        if ended:
            return np.ones(self._space.head_size, bool)
        raise self._wrong(self._nothing(mask))

    def _nothing(self, mask: np.ndarray) -> str:
        """What is wrong with a mask that allows no action, or nothing for a component of one, and what to do."""
        parts = split_components(self._space, mask)
        empty = next(number for number, part in enumerate(parts) if not part.any())
        which = f" of component {empty}" if len(parts) > 1 else ""
        remedy = "end the episode there" if self._steps else "begin where one is legal"
        return f"allows no action{which} (its action_mask has only zeros{' there' if which else ''}); {remedy}"

    def _flat(self, given: Any) -> np.ndarray:
        mask = _joined(given)
        if mask.dtype.kind not in NUMBERS or (mask.dtype.kind == "f" and np.isnan(mask).any()):
            raise self._wrong(
                f"gave the action_mask {short(given)} of type {mask.dtype}; "
                "give it 0 for each illegal action, and 1 for each legal one"
            )
        size = self._space.head_size
        if self._binary and isinstance(self._space, MultiDiscrete) and len(mask) == len(self._space.counts):
            mask = np.stack([mask != 1, mask != 0], axis=1).ravel()
        if len(mask) != size:
            raise self._wrong(
                f"gave an action_mask of length {len(mask)}; give it length {size}, one entry for each action"
            )
        return mask != 0

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"{self._game} at step {self._steps} of an episode {what}")


class Tried(gymnasium.Wrapper):
    """An environment that is tried before a run starts: it is reset only once, and its step is its first.

    The reset that shows whether it gives masks also begins the game, since a later reset gives the same start again.

    Args:
        env: any.
        game: for errors.

    Raises:
        UsageError: its step raises an exception.
    """

    def __init__(self, env: gymnasium.Env, game: str) -> None:
        super().__init__(env)
        self._game = game
        self._start: Any = None

    def reset(self, **options: Any) -> Any:
        """What the first reset gave."""
        if self._start is None:
            self._start = self.env.reset(**options)
        return self._start

    def step(self, action: Any) -> Any:
        """Steps the environment."""
        with first_call(self._game, "step"):
            return self.env.step(action)


def adapted(env: gymnasium.Env, game: str, masked: bool) -> gymnasium.Env:
    """The environment, adapted where it needs to be.

    Args:
        env: any.
        game: for errors.
        masked: whether it gives masks of legal actions.

    Raises:
        UsageError: an unsupported space.
    """
    plain = isinstance(env.observation_space, gymnasium.spaces.Box)  # which needs no more than a cast
    if masked or not plain or action_taker(env.action_space) is not None:
        return Adapted(env, game, masked)
    return env


def may_give_masks(env: gymnasium.Env, game: str) -> bool:
    """Whether the actions of an environment can be masked: all but continuous ones, which are always legal."""
    return not isinstance(action_space_of(game, env.action_space), Continuous)


def gives_masks(env: gymnasium.Env, game: str) -> bool:
    """Whether an environment gives masks of legal actions, in its observations or in the `info` of a first reset.

    Raises:
        UsageError: the reset fails, or does not return (observation, info).
    """
    if not may_give_masks(env, game):
        return False
    if _has_mask(env.observation_space):
        return True
    return first_start(game, lambda: env.reset(seed=PROBE_SEED))[1].get(ACTION_MASK) is not None


def first_start(game: str, reset: Callable[[], Any]) -> tuple[Any, dict]:
    """Observation and info of a first reset. Whatever an environment raises becomes a UsageError of one line."""
    with first_call(game, "reset"):
        given = reset()
    return start_of(game, given)


@contextlib.contextmanager
def first_call(game: str, method: str) -> Iterator[None]:
    """Context manager of the first `reset` or `step` of an environment, which makes a UsageError of what it raises."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if says_what_to_do(error):
            raise
        failed = f"{in_one_line(error)}{raised_at(error)}"
        missing = isinstance(error, NotImplementedError) and raised_in(error) == method
        remedy = f"write its {method}" if missing else "fix the environment"
        raise UsageError(f"{game} fails at its first {method}: {failed}; {remedy}") from error


def start_of(game: str, given: Any) -> tuple[Any, dict]:
    """Observation and info that a reset gave. Raises UsageError if it gave something else, as resets of Gym did."""
    if isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[1], dict):
        return given[0], given[1]
    pair = isinstance(given, tuple) and len(given) == 2
    what = f"info of {type(given[1]).__name__}" if pair else f"a {type(given).__name__}"
    raise UsageError(f"{game} gave {what} from its reset: have it return (observation, info), where info is a dict")


def check_step(game: str, given: Any) -> None:
    """Raises UsageError if a step did not give five values, as steps of Gym gave four, or one of an impossible type."""
    several = isinstance(given, (tuple, list))
    if not several or len(given) != STEP_VALUES:
        what = f"{len(given)} values" if several else f"a {type(given).__name__}"
        whole = "(observation, reward, terminated, truncated, info)"
        raise UsageError(f"{game} gave {what} from its step: have it return {whole}")
    _, reward, terminated, truncated, info = given
    if type(reward) in NOTHING_OR_TEXT:
        raise UsageError(f"{game} gave the reward {reward!r:.80} from its step: have it return a number")
    if not _is_flag(terminated) or not _is_flag(truncated):
        flags = f"terminated = {short(repr(terminated))} and truncated = {short(repr(truncated))}"
        raise UsageError(f"{game} gave {flags} from its step: have it return True or False for each")
    if not isinstance(info, dict):
        raise UsageError(f"{game} gave info of {type(info).__name__} from its step: have it return a dict")


def number_in(game: str, info: dict, name: str, players: int) -> np.ndarray:
    """The entry of an `info` that must be a number, or one for each player: [1] or [players]. Raises UsageError if it
    is neither.

    Lives must be finite, since they are counted; a score that is not is left out of means.
    """
    given = info[name]
    with contextlib.suppress(ValueError):  # of lists of unequal lengths
        numbers = np.asarray(given).reshape(-1)
        fit = numbers.dtype.kind in NUMBERS and numbers.size in (1, players)
        if fit and (name != "lives" or np.isfinite(numbers).all()):
            return numbers
    raise UsageError(f'{game} gave info["{name}"] = {short(repr(given))}: give a finite number, or leave it out')


def _is_flag(value: Any) -> bool:
    """Whether a value is true or false: None and text would be, too, and an array of several numbers is neither."""
    return type(value) is bool or (type(value) not in NOTHING_OR_TEXT and getattr(value, "size", 1) == 1)


def _joined(mask: Any) -> np.ndarray:
    """All numbers of a mask, which may be a tuple of masks, one after the other."""
    return np.concatenate([_joined(part) for part in mask]) if isinstance(mask, tuple) else np.ravel(mask)


def _has_mask(space: gymnasium.Space) -> bool:
    return isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces


def _without_mask(space: Any) -> gymnasium.spaces.Dict:
    return gymnasium.spaces.Dict([(key, inner) for key, inner in space.spaces.items() if key != ACTION_MASK])
