"""What an exported agent takes and gives, by name, and the facts about it in the JSON file beside the model."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from ddrl.checkpoint import new_stamp
from ddrl.envs.observations import ONE
from ddrl.envs.spaces import in_line
from ddrl.structured import field_types
from ddrl.types import Continuous

if TYPE_CHECKING:
    from ddrl.evaluation.agent import Agent

FORMAT = "ddrl-export"
FORMAT_VERSION = 1
LIMITS = {"b": (0, 1), "u": (0, 255)}  # of the types of observations that have any


def input_fields(agent: Agent) -> dict[str, str]:
    """Name of each input -> the field of an observation that it takes; one without fields is the field `observation`.

    They are the same, unless a field's name cannot be that of a tensor: `rest/0` becomes `rest_0`, and `0`
    `observation_0`.
    """
    names: dict[str, str] = {}
    for field in _fields(agent):
        name = re.sub(r"\W", "_", field)
        if not name[0].isalpha() or keyword.iskeyword(name) or name == "self":
            name = f"{ONE}_{name}"
        while name.lower() in map(str.lower, names):  # no two names in a graph of TensorFlow differ in case alone
            name += "_"
        names[name] = field
    return names


def input_types(agent: Agent) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Name of each input -> shape of one row of it, and type."""
    types = _fields(agent)
    return {name: types[field] for name, field in input_fields(agent).items()}


def inputs_of(agent: Agent, observations: np.ndarray) -> dict[str, np.ndarray]:
    """Observations <observation dtype>[b, ...] as inputs [b, ...]."""
    if observations.dtype.names is None:
        return dict.fromkeys(input_fields(agent), observations)
    return {name: np.array(observations[field], order="C") for name, field in input_fields(agent).items()}


def scores_name(agent: Agent) -> str | None:
    """What outputs give for every action, beside the chosen ones; None where actions are continuous."""
    if isinstance(agent.action_space, Continuous):
        return None
    return "probabilities" if agent.network.head is None else "q_values"


def action_range(agent: Agent) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest action, as the game's `step` takes them; a component without a bound has the
    smallest or the largest float32."""
    space = agent.action_space
    if isinstance(space, Continuous):
        largest = np.full(space.action_shape, np.finfo(np.float32).max, np.float32)
        smallest = -largest
    else:
        largest = np.reshape(space.counts, space.action_shape) - 1
        smallest = np.zeros_like(largest)
    with np.errstate(over="ignore"):  # in float16 they are infinite
        return agent.taken(smallest[None])[0], agent.taken(largest[None])[0]


def facts(agent: Agent, is_onnx: bool) -> dict[str, Any]:
    """What the JSON file says, as JSON types: docs/get-started/python.md lists it.

    Args:
        agent: the exported one.
        is_onnx: whether its model is an ONNX file, which has no signatures.
    """
    outputs = _output_facts(agent)
    signatures = {"act": ["action"], "evaluate": list(outputs), "serving_default": list(outputs)}
    return {
        **new_stamp(),
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "game": agent.config.environment.game,
        "protocol": agent.stamp,
        "algorithm": agent.config.title,
        "network": agent.network.name,
        "update": agent.checkpoint.version,
        "agent_steps": agent.checkpoint.agent_steps,
        "inputs": {name: _input_facts(agent, field) for name, field in input_fields(agent).items()},
        "outputs": outputs,
        "signatures": {} if is_onnx else signatures,
    }


def _fields(agent: Agent) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return field_types(agent.observation_dtype) or {ONE: (agent.observation_shape, agent.observation_dtype)}


def _input_facts(agent: Agent, field: str) -> dict[str, Any]:
    shape, dtype = _fields(agent)[field]
    known: dict[str, Any] = {"entry": field, "shape": list(shape), "dtype": dtype.name}
    space = agent.observation_spaces.get(field)
    if space is not None:
        known["space"] = in_line(space)
    if isinstance(space, gymnasium.spaces.Box):
        return known | _bounds(space.low, space.high)
    return known | (_bounds(*LIMITS[dtype.kind]) if dtype.kind in LIMITS else {})


def _output_facts(agent: Agent) -> dict[str, dict[str, Any]]:
    space, (smallest, largest) = agent.action_space, action_range(agent)
    action = {"shape": list(smallest.shape), "dtype": smallest.dtype.name, **_bounds(smallest, largest)}
    outputs: dict[str, dict[str, Any]] = {"action": action, "value": {"shape": [], "dtype": "float32"}}
    scores = scores_name(agent)
    if scores is not None and not isinstance(space, Continuous):
        outputs[scores] = {"shape": [space.head_size], "dtype": "float32", "counts": list(space.counts)}
    return outputs


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    """Entries `low` and `high`, each where there is such a bound."""
    numbers = {"low": _numbers(low), "high": _numbers(high)}
    return {name: bound for name, bound in numbers.items() if bound is not None}


def _numbers(bound: Any) -> Any:
    """A bound [...] as JSON types: one number where all are the same, and None for those that are beyond float32."""
    bound = np.asarray(bound)
    listed = bound.astype(object)
    listed[np.abs(bound.astype(np.float64)) >= np.finfo(np.float32).max] = None
    return listed.flat[0] if len(set(listed.flat)) == 1 else listed.tolist()
