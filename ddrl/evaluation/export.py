"""An agent as a file for programs without ddrl: a TensorFlow SavedModel or ONNX, compared with the agent itself.

Both take a batch of observations as the run's environments give it, with an input [b, ...] for each field
(`ddrl.evaluation.interface`), and compute in float32:

| signature of the SavedModel | gives |
|---|---|
| `act` | `action`: the greedy ones, as the game's step takes them |
| `evaluate`, and the default one | `action`, `value`, and `probabilities` or `q_values` where actions are discrete |

An ONNX file gives what `evaluate` does. The file NAME.json beside the model says all of this, and what it is of.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddrl.errors import UsageError, in_one_line
from ddrl.evaluation.interface import action_range, facts, input_fields, input_types, inputs_of, scores_name
from ddrl.files import name_new, write_whole
from ddrl.lazy import quiet_libraries, tf
from ddrl.structured import ACTION_MASK, split_components
from ddrl.types import Continuous
from ddrl.unfinished import check_place, unfinished

if TYPE_CHECKING:
    from ddrl.evaluation.agent import Agent

ONNX_SUFFIX = ".onnx"
OPSET = 17  # of ONNX: read by everything since 2022
TOLERANCE = 1e-4  # of outputs, relative where they are above 1
CHUNK = 64  # observations that are compared at once
SIMULATORS = 8

Arrays = dict[str, np.ndarray]
Copy = Callable[[Arrays], Arrays]
"""Inputs [b, ...] by name -> outputs, as in the module's table."""


def export(agent: Agent, path: Path, observations: int = 1000) -> dict[str, Any]:
    """Writes an agent, whole and compared, or not at all; see `Agent.export`."""
    check_output(path)
    description = Path(f"{path}.json")
    if observations < 1:
        raise UsageError(f"--observations {observations}: at least 1, or nothing would be compared")
    is_onnx = path.suffix == ONNX_SUFFIX
    write, read = (_write_onnx, _read_onnx) if is_onnx else (_write_saved_model, _read_saved_model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(path) as partial, quiet_libraries():
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
        text = json.dumps(facts(agent, is_onnx), indent=2, allow_nan=False)
        _publish(partial, path, description, text)
    return compared


def _publish(partial: Path, path: Path, description: Path, text: str) -> None:
    """Gives an export its name, and writes its description, unless another export has just taken one of the two."""
    try:
        name_new(partial, path)
        try:
            write_whole(description, f"{text}\n".encode(), new=True)
        except OSError:
            _remove(path)
            raise
    except FileExistsError as error:
        raise UsageError(_exists(error.filename)) from error


def check_output(path: Path) -> None:
    """Checks, without TensorFlow, that an agent can be exported as `path`.

    Raises:
        UsageError: it would replace a file, or needs a package that is not installed.
        OSError: the user may not write there.
    """
    for file in (path, Path(f"{path}.json")):
        if os.path.lexists(file):
            raise UsageError(_exists(file))
    if path.suffix == ONNX_SUFFIX:
        for name in ("tf2onnx", "onnxruntime"):
            if importlib.util.find_spec(name) is None:
                raise UsageError(f"ONNX needs the package {name}, which is not installed: pip install 'ddrl[onnx]'")
    check_place(path)


def _exists(file: Path | str) -> str:
    return f"{file} exists, and nothing is overwritten: choose another name"


def compare(agent: Agent, copy: Copy, observations: Iterator[np.ndarray]) -> dict[str, Any]:
    """Runs an agent and a copy on the same observations.

    Args:
        agent: the original.
        copy: what a file of it computes.
        observations: batches <observation dtype>[b, ...].

    Returns:
        observations; same_actions, how often the action is the same (continuous ones: within TOLERANCE);
        largest_difference of any output, relative where it is above 1.
    """
    count = same = 0
    largest = 0.0
    is_continuous = isinstance(agent.action_space, Continuous)
    for batch in observations:
        expected, given = _outputs_of(agent, batch), copy(inputs_of(agent, batch))
        differences = {name: _difference(given[name], array) for name, array in expected.items()}
        # Rounding may decide between two discrete actions; the numbers by which they are chosen are compared instead.
        actions = np.reshape(differences["action"] if is_continuous else differences.pop("action"), (len(batch), -1))
        same += int((actions.max(axis=1) <= (TOLERANCE if is_continuous else 0.0)).sum())
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


def _outputs_of(agent: Agent, observations: np.ndarray) -> Arrays:
    outputs = {"action": agent.act(observations), "value": agent.values(observations)}
    scores = scores_name(agent)
    return outputs if scores is None else outputs | {scores: getattr(agent, scores)(observations)}


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
    network, fields = agent.network, input_fields(agent)
    prepared = network.prepare(tf.constant(agent.checkpoint.parameters, tf.float32))
    module = tf.Module()
    module.parameters = [tf.Variable(tensor, trainable=False) for tensor in tf.nest.flatten(prepared)]

    def evaluate(*inputs: Any) -> dict[str, Any]:
        tensors = tf.nest.pack_sequence_as(prepared, [tf.convert_to_tensor(each) for each in module.parameters])
        # In float32 no network takes the ways that are fast here and that ONNX lacks.
        rows = [x if field == ACTION_MASK else tf.cast(x, tf.float32) for field, x in zip(fields.values(), inputs)]
        observation = dict(zip(fields.values(), rows)) if agent.observation_dtype.names else rows[0]
        output = network.apply(tensors, observation)
        outputs = {"action": _greedy(agent, output.policy), "value": output.value, **_scores(agent, output.policy)}
        return {name: tf.identity(x) for name, x in outputs.items()}

    specs = [tf.TensorSpec([None, *shape], dtype, name) for name, (shape, dtype) in input_types(agent).items()]
    compiled = functools.partial(tf.function, input_signature=specs, autograph=False)
    module.evaluate = compiled(evaluate)
    module.act = compiled(lambda *inputs: {"action": evaluate(*inputs)["action"]})
    return module


def _greedy(agent: Agent, policy: Any) -> Any:
    """`Agent.taken` of the best actions by a policy <float32>[b, P]."""
    space, (smallest, largest) = agent.action_space, action_range(agent)
    if isinstance(space, Continuous):
        low, high = (np.ravel(bound).astype(np.float32) for bound in (smallest, largest))
        best = tf.clip_by_value(policy[:, : space.head_size], low, high)
    else:
        parts = split_components(space, policy)
        best = tf.stack([tf.argmax(part, axis=1) for part in parts], axis=1) + np.ravel(smallest).astype(np.int64)
    return tf.reshape(tf.cast(best, smallest.dtype), [-1, *smallest.shape])


def _scores(agent: Agent, policy: Any) -> dict[str, Any]:
    """What the outputs have for every action, by a policy <float32>[b, P]."""
    name, space = scores_name(agent), agent.action_space
    if name is None:
        return {}
    parts = split_components(space, policy)
    return {name: policy if name == "q_values" else tf.concat([tf.nn.softmax(part) for part in parts], axis=1)}


def _write_saved_model(agent: Agent, path: Path) -> None:
    module = _module(agent)
    signatures = {"serving_default": module.evaluate, "act": module.act, "evaluate": module.evaluate}
    tf.saved_model.save(module, str(path), signatures)


def _read_saved_model(path: Path) -> Copy:
    loaded = tf.saved_model.load(str(path))
    evaluate, act = loaded.signatures["evaluate"], loaded.signatures["act"]

    def outputs(inputs: Arrays) -> Arrays:
        tensors = {name: tf.constant(array) for name, array in inputs.items()}
        return {name: value.numpy() for name, value in (evaluate(**tensors) | act(**tensors)).items()}

    outputs.loaded = loaded  # type: ignore[attr-defined] # its signatures do not keep its variables
    return outputs


def _write_onnx(agent: Agent, path: Path) -> None:
    import tf2onnx

    module = _module(agent)
    tf2onnx.convert.from_function(module.evaluate, module.evaluate.input_signature, opset=OPSET, output_path=str(path))


def _read_onnx(path: Path) -> Copy:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def outputs(inputs: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, inputs)))

    return outputs


def _remove(path: Path) -> None:
    """Removes a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
