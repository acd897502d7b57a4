"""An agent as a file for programs without ddrl: a TensorFlow SavedModel or ONNX, compared with the agent itself.

Both take a batch `observation` [b, ...] as the run's environments give it, and compute in float32:

| signature of the SavedModel | gives |
|---|---|
| `act` | `action`: the greedy ones, as the game's step takes them |
| `evaluate`, and the default one | `action`, `value`, and `probabilities` or `q_values` where actions are discrete |

An ONNX file gives what `evaluate` does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.errors import UsageError, in_one_line
from ddrl.evaluation.agent import Agent, quiet_libraries
from ddrl.lazy import tf
from ddrl.types import Continuous, Discrete

ONNX_SUFFIX = ".onnx"
OPSET = 17  # of ONNX: read by everything since 2022
TOLERANCE = 1e-4  # of outputs, relative where they are above 1
CHUNK = 64  # observations that are compared at once
SIMULATORS = 8

Outputs = dict[str, np.ndarray]


def export(agent: Agent, path: Path, observations: int = 1000) -> dict[str, Any]:
    """Writes an agent, whole and compared, or not at all; see `Agent.export`."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists, and nothing is overwritten: choose another name")
    if observations < 1:
        raise UsageError(f"--observations {observations}: at least 1, or nothing would be compared")
    if not isinstance(agent.action_space, (Discrete, Continuous)) or agent.observation_dtype.fields:
        raise UsageError(
            f"{agent.config.environment.game}: only plain observations and Discrete or Box actions can be exported"
        )
    is_onnx = path.suffix == ONNX_SUFFIX
    if is_onnx:
        _require("tf2onnx", "onnxruntime")
    write, read = (_write_onnx, _read_onnx) if is_onnx else (_write_saved_model, _read_saved_model)
    partial = path.with_name(f".{path.name}.partial")
    with _removed(partial), quiet_libraries():
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(agent, partial)
            copy = read(partial)
        except (UsageError, OSError):
            raise
        except Exception as error:
            how = "; without .onnx, it is written as a SavedModel" if is_onnx else ""
            raise UsageError(f"{path} cannot be written: {in_one_line(error):.300}{how}") from error
        compared = compare(agent, copy, game_observations(agent, observations))
        if not compared["largest_difference"] <= TOLERANCE:
            raise UsageError(
                f"{path} is not written: its outputs differ by {compared['largest_difference']:.3g} from the agent's, "
                f"and the limit is {TOLERANCE:g}; tell the developers which run it is from"
            )
        partial.replace(path)
    return compared


def compare(agent: Agent, copy: Callable[[np.ndarray], Outputs], observations: Iterator[np.ndarray]) -> dict[str, Any]:
    """Runs an agent and a copy on the same observations.

    Args:
        agent: the original.
        copy: observations [b, ...] -> outputs as in the module's table.
        observations: batches.

    Returns:
        observations; same_actions, how often the action is the same (continuous ones: within TOLERANCE);
        largest_difference of any output, relative where it is above 1.
    """
    count = same = 0
    largest = 0.0
    for batch in observations:
        expected, given = _outputs_of(agent, batch), copy(batch)
        differences = {name: _difference(given[name], array) for name, array in expected.items()}
        actions = np.reshape(
            differences.pop("action") if _is_discrete(agent) else differences["action"], (len(batch), -1)
        )
        same += int((actions.max(axis=1) <= (0.0 if _is_discrete(agent) else TOLERANCE)).sum())
        # Of NumPy, as Python's max passes over NaN: a copy that gives NaN is not near.
        largest = float(np.max([largest, *(difference.max() for difference in differences.values())]))
        count += len(batch)
    return {"observations": count, "same_actions": same, "largest_difference": largest}


def game_observations(agent: Agent, count: int) -> Iterator[np.ndarray]:
    """So many observations of the run's game, which the agent plays with drawn actions, in batches."""
    from ddrl.envs import make_environment

    simulators = min(SIMULATORS, count)
    with contextlib.closing(make_environment(agent.config.environment, simulators, training=False)) as environment:
        environment.reset(0)
        waiting: list[np.ndarray] = []
        while count > 0:
            step = environment.recv()
            waiting.extend(step.observation[:count])
            count -= len(step.observation)
            environment.send(agent.chosen(step.observation, greedy=False))
            if len(waiting) >= CHUNK or count <= 0:
                yield np.stack(waiting)
                waiting = []


def _is_discrete(agent: Agent) -> bool:
    return isinstance(agent.action_space, Discrete)


def _outputs_of(agent: Agent, observations: np.ndarray) -> Outputs:
    outputs = {"action": agent.act(observations), "value": agent.values(observations)}
    if not _is_discrete(agent):
        return outputs
    if agent.network.head is None:
        return outputs | {"probabilities": agent.probabilities(observations)}
    return outputs | {"q_values": agent.q_values(observations)}


def _difference(given: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """NaN where one of the two is not finite, and the other something else."""
    same = (given == expected) | (np.isnan(given) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        differences = np.abs(given.astype(np.float64) - expected) / np.maximum(1.0, np.abs(expected))
        # Two numbers that are nearly equal may be rounded to two float16.
        rounded = (expected.dtype == np.float16) & (differences <= np.finfo(np.float16).eps)
    return np.where(same | rounded, 0.0, differences)


def _module(agent: Agent) -> Any:
    """A tf.Module with the parameters as variables and the functions `act` and `evaluate`."""
    network, space = agent.network, agent.action_space
    native = agent.taken(np.zeros((1, *space.action_shape), space.action_dtype))  # of the game's own shape and type
    prepared = network.prepare(tf.constant(agent.checkpoint.parameters, tf.float32))
    module = tf.Module()
    module.parameters = [tf.Variable(tensor, trainable=False) for tensor in tf.nest.flatten(prepared)]

    def evaluate(observation: Any) -> dict[str, Any]:
        # In float32 no network takes the ways that are fast here and that ONNX lacks.
        tensors = tf.nest.pack_sequence_as(prepared, [tf.convert_to_tensor(each) for each in module.parameters])
        output = network.apply(tensors, tf.cast(observation, tf.float32))
        if isinstance(space, Continuous):
            low, high = (np.array(bound, np.float32) for bound in space)
            bounded = tf.cast(tf.clip_by_value(output.policy[:, : space.head_size], low, high), native.dtype)
            return {"action": tf.reshape(bounded, [-1, *native.shape[1:]]), "value": tf.identity(output.value)}
        action = tf.cast(tf.argmax(output.policy, axis=1, output_type=tf.int32) + agent.first_action, native.dtype)
        name, each = (
            ("probabilities", tf.nn.softmax(output.policy)) if network.head is None else ("q_values", output.policy)
        )
        return {"action": action, "value": tf.identity(output.value), name: tf.identity(each)}

    spec = tf.TensorSpec([None, *agent.observation_shape], agent.observation_dtype, name="observation")
    module.evaluate = tf.function(evaluate, input_signature=[spec], autograph=False)
    module.act = tf.function(lambda observation: {"action": evaluate(observation)["action"]}, input_signature=[spec])
    return module


def _write_saved_model(agent: Agent, path: Path) -> None:
    module = _module(agent)
    signatures = {"serving_default": module.evaluate, "act": module.act, "evaluate": module.evaluate}
    tf.saved_model.save(module, str(path), signatures)


def _read_saved_model(path: Path) -> Callable[[np.ndarray], Outputs]:
    loaded = tf.saved_model.load(str(path))
    evaluate, act = loaded.signatures["evaluate"], loaded.signatures["act"]

    def outputs(observations: np.ndarray) -> Outputs:
        tensor = tf.constant(observations)
        return {name: value.numpy() for name, value in (evaluate(tensor) | act(tensor)).items()}

    outputs.loaded = loaded  # type: ignore[attr-defined] # its signatures do not keep its variables
    return outputs


def _write_onnx(agent: Agent, path: Path) -> None:
    import tf2onnx

    module = _module(agent)
    tf2onnx.convert.from_function(module.evaluate, module.evaluate.input_signature, opset=OPSET, output_path=str(path))


def _read_onnx(path: Path) -> Callable[[np.ndarray], Outputs]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def outputs(observations: np.ndarray) -> Outputs:
        return dict(zip(names, session.run(names, {"observation": observations})))

    return outputs


def _require(*packages: str) -> None:
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"ONNX needs the package {name}, which is not installed: pip install 'ddrl[onnx]'")


@contextlib.contextmanager
def _removed(path: Path) -> Iterator[None]:
    """What is left at `path` is removed, before and after."""

    def remove() -> None:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)

    remove()
    try:
        yield
    finally:
        remove()
