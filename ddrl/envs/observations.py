"""Observations of any of Gymnasium's spaces as arrays: plain ones, or structured with a field for each entry."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from ddrl.envs.spaces import in_line
from ddrl.errors import UsageError
from ddrl.structured import ACTION_MASK

LARGEST_ONE_HOT = 1 << 16  # most bytes that a Discrete or MultiDiscrete may become
NUMBERS = "biuf"  # kinds of NumPy's types that are numbers: bool, int, unsigned, float
ONE = "observation"  # the field of an observation that is no Dict or Tuple, beside the field of legal actions
spaces = gymnasium.spaces
Convert = Callable[[Any], np.ndarray]


class ObservationFormat:
    """Converts observations of a space to arrays.

    A Box of uint8 stays as it is; any other Box becomes float32. A Discrete becomes a one-hot <bool>[n], a
    MultiDiscrete the one-hot arrays of its components one after the other, a MultiBinary its <bool> array. A Dict or a
    Tuple becomes a structured array with a field for each entry, in the order of the space. The name of a field is the
    entry's key or number, or `outer/inner` for an entry of an entry. With a mask there is also the field `action_mask`,
    and an observation that is no Dict or Tuple is the field `observation`.

    Args:
        game: its name, for errors.
        space: of the observations.
        mask_size: entries of a mask, which are outputs of the policy head (0: there is no mask).

    Attributes:
        shape, dtype: of one observation's array; a structured one has the shape ().
        spaces: name of each field -> the space of its entry; one that is no Dict or Tuple is the entry `observation`.

    Raises:
        UsageError: an unsupported space (Text, Graph, Sequence, ...).
    """

    def __init__(self, game: str, space: gymnasium.Space, mask_size: int = 0) -> None:
        self._game = game
        several = isinstance(space, (spaces.Dict, spaces.Tuple))
        leaves = [(_name(path) or ONE, path, leaf) for path, leaf in _leaves(game, space)]
        self.spaces = {name: leaf for name, _, leaf in leaves}
        self._parts = [(name, path, *_part(game, leaf)) for name, path, leaf in leaves]
        fields = [(name, dtype, shape) for name, _, shape, dtype, _ in self._parts]
        # Entries are simple if they need no conversion and are not nested: their bytes need only be joined.
        simple = all(len(path) == 1 and convert in (as_numbers, as_bytes) for _, path, _, _, convert in self._parts)
        keys = [path[0] for _, path, *_ in self._parts] if simple else []
        self._entries = operator.itemgetter(*keys) if len(keys) > 1 else None
        self.structured = several or mask_size > 0
        if not self.structured:
            _, _, self.shape, self.dtype, self._convert = self._parts[0]
            return
        if ACTION_MASK in {name for name, *_ in fields}:
            taken = f"{ACTION_MASK}, a name that is reserved for masks of discrete actions"
            raise UsageError(f"{game} has an entry {taken}: rename it ({in_line(space)})")
        if mask_size:
            fields.append((ACTION_MASK, np.dtype(bool), (mask_size,)))
        self._plain = [(shape, dtype) for _, dtype, shape in fields]
        if len({name for name, *_ in fields}) < len(fields):
            raise UsageError(
                f"{game}: two entries of its observations have the same name ({in_line(space)}): rename one"
            )
        self.shape, self.dtype = (), np.dtype(fields)

    def array(self, observation: Any, mask: np.ndarray | None = None) -> np.ndarray:
        """An observation as an array of `shape` and `dtype`.

        Args:
            observation: an observation of the space.
            mask: <bool>[A] for the field of legal actions, if there is one.

        Raises:
            UsageError: the observation has another shape than its space, or lacks an entry.
        """
        if not self.structured:
            return self._checked(observation, self._convert, self.shape, "")
        joined = self._joined(observation, mask)
        if joined is not None:
            return joined
        array = np.empty((), self.dtype)
        for name, path, shape, _, convert in self._parts:
            array[name] = self._checked(self._entry(observation, path), convert, shape, name)
        if mask is not None:
            array[ACTION_MASK] = mask
        return array

    def _joined(self, observation: Any, mask: np.ndarray | None) -> np.ndarray | None:
        """What `array` returns, in half of the time; None if an entry is not simple, or not as it should be."""
        if self._entries is None:
            return None
        try:
            values = self._entries(observation)
            if mask is not None:
                values = (*values, mask)
            parts = []
            for value, (shape, dtype) in zip(values, self._plain):
                if value.shape != shape or (dtype == np.uint8 and value.dtype != dtype):
                    return None
                if value.dtype is not dtype:
                    if value.dtype.kind not in NUMBERS:
                        return None
                    value = value.astype(dtype)
                parts.append(value)
            return np.ndarray((), self.dtype, bytearray().join(parts))
        except (AttributeError, BufferError, LookupError, TypeError, ValueError):
            return None

    def _entry(self, observation: Any, path: tuple[Any, ...]) -> Any:
        try:
            for key in path:
                observation = observation[key]
        except (LookupError, TypeError) as error:
            raise UsageError(f"{self._game} gave an observation without {_name(path)}: fix the environment") from error
        return observation

    def _checked(self, value: Any, convert: Convert, shape: tuple[int, ...], name: str) -> np.ndarray:
        array = in_space(self._game, name, convert, value)
        if array.shape != shape:
            which = f"an observation {name} of" if name else "an observation of"
            raise UsageError(
                f"{self._game} gave {which} shape {array.shape}, and its observation space has {shape}: fix the "
                "environment"
            )
        return array


def in_space(game: str, name: str, convert: Convert, value: Any) -> np.ndarray:
    """An observation, or its entry of this name, as an array. Raises UsageError if the value is not in its space."""
    try:
        return convert(value)
    except (IndexError, TypeError, ValueError) as error:
        which = f"an observation {name}" if name else "an observation"
        raise UsageError(f"{game} gave {which} beyond its space ({error}): fix the environment") from error


def as_numbers(value: Any) -> np.ndarray:
    """Numbers of any type as an array. Raises ValueError for text, None, or complex numbers, which NumPy would cast."""
    array = np.asarray(value)
    if array.dtype.kind not in NUMBERS:
        raise ValueError(f"{short(value)} of type {array.dtype} is not a number")
    return array


def short(value: Any) -> str:
    """The beginning of a value as text in one line, for messages."""
    return f"{' '.join(str(value).split()):.60}"


def as_bytes(value: Any) -> np.ndarray:
    """Numbers of any type as <uint8>[...]. Raises ValueError if the cast would change one of them."""
    array = as_numbers(value)
    if array.dtype == np.uint8:
        return array
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.uint8)
    if (changed := whole != array).any():
        raise ValueError(f"{array.dtype} {array[changed][0]} is no uint8")
    return whole


def observation_of(game: str, space: gymnasium.Space) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of an observation's array. Raises UsageError for an unsupported space."""
    format = ObservationFormat(game, space)
    return format.shape, format.dtype


def _leaves(game: str, space: gymnasium.Space, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Paths and spaces of all entries that are no Dict or Tuple."""
    entries: list[tuple[Any, gymnasium.Space]]
    if isinstance(space, spaces.Dict):
        entries = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        entries = list(enumerate(space.spaces))
    else:
        yield path, space
        return
    if not entries:
        raise UsageError(
            f"{game} has an observation space without entries, {in_line(space)}: add something that a policy can see"
        )
    for key, inner in entries:
        yield from _leaves(game, inner, (*path, key))


def _name(path: tuple[Any, ...]) -> str:
    """The name of a field, in ASCII, with which arrays can be saved."""
    return "/".join(str(key).encode("ascii", "backslashreplace").decode() or "_" for key in path)


def _part(game: str, space: gymnasium.Space) -> tuple[tuple[int, ...], np.dtype, Convert]:
    """Shape and type of the array that an entry of this space becomes, and the function that converts it."""
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub":
        if space.dtype == np.uint8:
            return tuple(space.shape), np.dtype(np.uint8), as_bytes
        return tuple(space.shape), np.dtype(np.float32), as_numbers
    if isinstance(space, spaces.Discrete):
        return _one_hots(game, space, np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hots(game, space, np.ravel(space.nvec), np.ravel(space.start))
    if isinstance(space, spaces.MultiBinary):
        return tuple(space.shape), np.dtype(bool), as_numbers
    supported = "supported are Box, Discrete, MultiDiscrete, MultiBinary, and a Dict or Tuple of these"
    raise UsageError(f"{game} has the observation space {in_line(space)}; {supported}")


def _one_hots(
    game: str, space: gymnasium.Space, counts: np.ndarray, first: np.ndarray
) -> tuple[tuple[int, ...], np.dtype, Convert]:
    counts, first = counts.astype(np.int64), first.astype(np.int64)  # with int64, uint64 would become float64
    size = int(counts.sum())
    if size > LARGEST_ONE_HOT:
        remedy = "give its meaning as a Box"
        raise UsageError(f"{game} has the observation space {in_line(space)}, of {size:,} values together; {remedy}")
    starts = np.cumsum([0, *counts[:-1]])

    def convert(value: Any) -> np.ndarray:
        number = np.ravel(value).astype(np.int64, casting="same_kind") - first
        if number.shape != counts.shape or (number < 0).any() or (number >= counts).any():
            raise ValueError(f"{value!s:.80} is not in {in_line(space)}")
        array = np.zeros(size, bool)
        array[number + starts] = True
        return array

    return (size,), np.dtype(bool), convert
