"""Exports of games of any spaces, and the file beside a model that says what it takes and gives. Nothing is trained."""

from __future__ import annotations

import json
import types

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from ddrl.errors import UsageError
from ddrl.evaluation import export as exports
from ddrl.evaluation import interface
from ddrl.evaluation.agent import load_agent
from ddrl.networks.network import Network, orthogonal
from ddrl.structured import ACTION_MASK
from tests.documents import pages
from tests.evaluation.test_agent import FORMATS, MLP, run_of
from tests.test_unfinished import abandon

spaces = gymnasium.spaces
PAGE = pages.ROOT / "docs/get-started/python.md"


class Odd(gymnasium.Env):
    """Entries whose names cannot be those of tensors, a picture for the chosen network, actions that begin anywhere."""

    observation_space = spaces.Tuple(
        (
            spaces.Box(0, 255, (4, 40, 40), np.uint8),
            spaces.Dict({"In": spaces.Box(-np.inf, np.inf, (2,)), "in": spaces.Box(0, 9, (3,), np.uint8)}),
        )
    )
    action_space = spaces.MultiDiscrete(np.array([[2, 3], [2, 4]]), np.int16, start=np.array([[1, 0], [0, -3]]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self._observation(), 1.0, False, bool(self.np_random.random() < 0.2), {}

    def _observation(self):
        random = self.np_random
        picture = random.integers(0, 256, (4, 40, 40)).astype(np.uint8)
        numbers = random.integers(0, 10, 3).astype(np.uint8)
        return picture, {"In": random.standard_normal(2, np.float32), "in": numbers}


gymnasium.register("test/Odd-v0", Odd)


def agent_of(path, algorithm, game, **groups):
    return load_agent(run_of(path, algorithm, game, **(groups or MLP)), (1, 64), compute_dtype="float32")


def doors(name):
    return f"tests.envs.doors:ddrl-test/{name}-v0"


def read(path):
    return (exports._read_onnx if path.suffix == ".onnx" else exports._read_saved_model)(path)


ENTRIES = ["light", "number", "rest_0", "rest_1"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "algorithm, game, inputs, outputs",
    [
        ("ppo", "Doors", [*ENTRIES, ACTION_MASK], ["action", "value", "probabilities"]),
        ("ppo", "PairDoors", [*ENTRIES, ACTION_MASK], ["action", "value", "probabilities"]),
        ("ppo", "BitDoors", [*ENTRIES, ACTION_MASK], ["action", "value", "probabilities"]),
        ("dqn", "FlatDoors", ["observation", ACTION_MASK], ["action", "value", "q_values"]),
        ("dpg", "BoxDoors", ENTRIES, ["action", "value"]),
    ],
)
def test_entries_masks_and_components_are_inputs_and_outputs(algorithm, game, inputs, outputs, name, tmp_path):
    """With an image among the entries, which PPO's network convolves, and DPG's takes with all others as one vector."""
    agent = agent_of(tmp_path / "run", algorithm, doors(game))
    compared = agent.export(tmp_path / name, 70)
    assert (compared["observations"], compared["same_actions"]) == (70, 70) and compared["largest_difference"] < 1e-5
    batch = next(exports.game_observations(agent, 12))
    given, expected = read(tmp_path / name)(interface.inputs_of(agent, batch)), agent.act(batch)
    assert (given["action"].dtype, given["action"].shape) == (expected.dtype, expected.shape)
    known = json.loads((tmp_path / f"{name}.json").read_text())
    assert (list(known["inputs"]), list(known["outputs"])) == (inputs, outputs)
    assert set(given) == set(outputs)


def test_an_export_obeys_the_mask(tmp_path):
    agent = agent_of(tmp_path / "run", "ppo", doors("PairDoors"))
    agent.export(tmp_path / "model", 10)
    inputs = interface.inputs_of(agent, next(exports.game_observations(agent, 8)))
    inputs[ACTION_MASK] = np.repeat(np.array([[False, False, True, False, True, False]]), 8, axis=0)
    given = read(tmp_path / "model")(inputs)
    np.testing.assert_array_equal(given["action"], [[2, 0]] * 8)
    np.testing.assert_allclose(given["probabilities"], [[0, 0, 1, 0, 1, 0]] * 8, atol=1e-6)


def test_probabilities_of_several_components_stand_one_after_the_other(tmp_path):
    agent = agent_of(tmp_path / "run", "ppo", doors("PairDoors"))
    batch = next(exports.game_observations(agent, 12))
    given = agent.probabilities(batch)
    assert given.shape == (12, 6) and not given[~batch[ACTION_MASK]].any()
    for part, component in ((given[:, :4], 0), (given[:, 4:], 1)):
        np.testing.assert_allclose(part.sum(axis=1), 1.0, rtol=1e-5)
        np.testing.assert_array_equal(part.argmax(axis=1), agent.act(batch)[:, component])
    np.testing.assert_array_equal(agent.probabilities(batch[0]).shape, (6,))


@pytest.mark.parametrize("name", FORMATS)
def test_names_pictures_and_first_actions_of_any_kind(name, tmp_path):
    network = {"network": {"network": "a3c", "compute_dtype": "float32"}}
    agent = agent_of(tmp_path / "run", "ppo", "test/Odd-v0", **network)
    assert agent.export(tmp_path / name, 30)["same_actions"] == 30
    batch = next(exports.game_observations(agent, 5))
    given = read(tmp_path / name)(interface.inputs_of(agent, batch))["action"]
    assert given.dtype == np.int16 and all(Odd.action_space.contains(action) for action in given)
    known = json.loads((tmp_path / f"{name}.json").read_text())
    assert {name: each["entry"] for name, each in known["inputs"].items()} == {
        "observation_0": "0", "observation_1_In": "1/In", "observation_1_in_": "1/in",
    }  # fmt: skip
    assert known["outputs"]["action"] == {
        "shape": [2, 2], "dtype": "int16", "low": [[1, 0], [0, -3]], "high": [[2, 2], [1, 0]],
    }  # fmt: skip
    graph = exports._module(agent).evaluate.get_concrete_function().graph
    assert not {"Bitcast", "StatefulPartitionedCall"} & {op.type for op in graph.get_operations()}, "ONNX lacks them"


class Blind(Network):
    """Reads one entry of Doors, the number."""

    def __init__(self, found):
        tensors = [("policy/kernel", (4, 4), orthogonal(1.0)), ("value/kernel", (4, 1), orthogonal(1.0))]
        super().__init__("blind", tensors, found.observation_dtype, found.actions, "float32", found.head)

    def outputs(self, prepared, observations):
        number = tf.cast(observations["number"], tf.float32)
        return {head: tf.matmul(number, prepared[f"{head}/kernel"]) for head in ("policy", "value")}


def blind(found, config):
    return Blind(found)


@pytest.mark.parametrize("name", FORMATS)
def test_an_entry_that_a_network_does_not_read_is_an_input_all_the_same(name, tmp_path):
    network = {"network": {"network": "tests.evaluation.test_export:blind"}}
    agent = agent_of(tmp_path / "run", "ppo", doors("OpenDoors"), **network)
    assert agent.export(tmp_path / name, 10)["same_actions"] == 10
    assert list(json.loads((tmp_path / f"{name}.json").read_text())["inputs"]) == ENTRIES


def test_the_file_says_what_the_model_is_of_and_what_it_takes_and_gives(tmp_path):
    agent = agent_of(tmp_path / "run", "ppo", doors("PairDoors"))
    agent.export(tmp_path / "model", 10)
    known = json.loads((tmp_path / "model.json").read_text())
    assert (known["format"], known["format_version"]) == ("ddrl-export", 1)
    assert (known["game"], known["algorithm"], known["network"]) == (doors("PairDoors"), "ppo", "mlp")
    assert (known["update"], known["agent_steps"]) == (5, 10**6)
    assert known["protocol"]["protocol"] == "gymnasium" and known["protocol"]["game"] == doors("PairDoors")
    assert {"ddrl", "tensorflow", "gymnasium"} <= set(known["packages"])
    bits = {"dtype": "bool", "low": 0, "high": 1}
    assert known["inputs"] == {
        "light": {
            "entry": "light", "shape": [8, 8, 1], "dtype": "uint8", "space": "Box(0, 255, (8, 8, 1), uint8)",
            "low": 0, "high": 255,
        },
        "number": {"entry": "number", "shape": [4], "space": "Discrete(4, start=1)", **bits},
        "rest_0": {"entry": "rest/0", "shape": [2], "space": "MultiBinary(2)", **bits},
        "rest_1": {
            "entry": "rest/1", "shape": [2, 2], "dtype": "float32", "space": "Box(-1.0, 1.0, (2, 2), float64)",
            "low": -1.0, "high": 1.0,
        },
        "action_mask": {"entry": "action_mask", "shape": [6], **bits},
    }  # fmt: skip
    assert known["outputs"] == {
        "action": {"shape": [2], "dtype": "int64", "low": 0, "high": [3, 1]},
        "value": {"shape": [], "dtype": "float32"},
        "probabilities": {"shape": [6], "dtype": "float32", "counts": [4, 2]},
    }
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert set(loaded.signatures) == set(known["signatures"])
    for name, outputs in known["signatures"].items():
        (_, takes), gives = (
            loaded.signatures[name].structured_input_signature,
            loaded.signatures[name].structured_outputs,
        )
        assert types_of(takes) == {name: (each["shape"], each["dtype"]) for name, each in known["inputs"].items()}
        assert types_of(gives) == {
            each: (known["outputs"][each]["shape"], known["outputs"][each]["dtype"]) for each in outputs
        }


def types_of(tensors):
    """Shape without that of the batch, and type."""
    return {name: (x.shape.as_list()[1:], x.dtype.name) for name, x in tensors.items()}


def test_bounds_that_are_not_there_are_not_in_the_file(tmp_path):
    cart = interface.facts(agent_of(tmp_path / "cart", "ppo", "CartPole-v1"), is_onnx=True)
    (low, no_low, *_), (high, no_high, *_) = (cart["inputs"]["observation"][bound] for bound in ("low", "high"))
    assert high == -low == pytest.approx(4.8) and no_low is None and no_high is None
    assert cart["outputs"]["action"] == {"shape": [], "dtype": "int32", "low": 0, "high": 1} and not cart["signatures"]
    pong = interface.facts(agent_of(tmp_path / "pong", "a2c", "pong", network={"network": "a3c"}), is_onnx=False)
    assert pong["inputs"] == {
        "observation": {"entry": "observation", "shape": [4, 84, 84], "dtype": "uint8", "low": 0, "high": 255}
    }
    assert (pong["protocol"]["protocol"], pong["protocol"]["game"]) == ("nature", "pong")
    assert interface._bounds(np.full(2, -np.inf), np.full(2, np.finfo(np.float32).max)) == {}


def test_names_of_inputs_can_be_those_of_tensors():
    fields = ["speed", "a/b", "a_b", "A_B", "7", "_", "class", "self", "sp eed"]
    agent = types.SimpleNamespace(observation_dtype=np.dtype([(field, "f4") for field in fields]))
    assert interface.input_fields(agent) == {
        "speed": "speed", "a_b": "a/b", "a_b_": "a_b", "A_B__": "A_B", "observation_7": "7", "observation__": "_",
        "observation_class": "class", "observation_self": "self", "sp_eed": "sp eed",
    }  # fmt: skip


def test_a_copy_with_another_policy_is_not_written(tmp_path, monkeypatch):
    """Of several components, too, of which one may be right and the other wrong."""
    agent = agent_of(tmp_path / "run", "ppo", doors("PairDoors"))
    known = exports._read_saved_model

    def other(path):
        outputs = known(path)
        second = np.array([0, 0, 0, 0, 0.01, -0.01], np.float32)
        return lambda inputs: {n: x + second if n == "probabilities" else x for n, x in outputs(inputs).items()}

    monkeypatch.setattr(exports, "_read_saved_model", other)
    with pytest.raises(UsageError, match="is not written: its outputs differ by 0.01"):
        agent.export(tmp_path / "model", 20)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_neither_of_the_two_files_is_overwritten_or_left_alone(tmp_path, monkeypatch):
    agent = agent_of(tmp_path / "run", "ppo", "CartPole-v1")
    (tmp_path / "model.json").write_text("mine")
    with pytest.raises(UsageError, match=r"/model\.json exists, and nothing is overwritten"):
        agent.export(tmp_path / "model", 10)
    assert (tmp_path / "model.json").read_text() == "mine"
    with pytest.raises(UsageError, match=r"^\. exists, and nothing is overwritten"):
        agent.export(".", 10)
    compare = exports.compare

    def meanwhile(*arguments):
        (tmp_path / "other" / "file").mkdir(parents=True)  # somebody else's
        return compare(*arguments)

    monkeypatch.setattr(exports, "compare", meanwhile)
    with pytest.raises(UsageError, match="/other exists, and nothing is overwritten"):
        agent.export(tmp_path / "other", 10)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model.json", "other"}


def test_of_two_exports_to_one_place_at_once_the_first_one_stays_whole(tmp_path, monkeypatch):
    agent = agent_of(tmp_path / "run", "ppo", "CartPole-v1")
    abandon(tmp_path / "model")  # which goes
    compare = exports.compare

    def meanwhile(*arguments):
        monkeypatch.setattr(exports, "compare", compare)
        agent.export(tmp_path / "model", 10)
        return compare(*arguments)

    monkeypatch.setattr(exports, "compare", meanwhile)
    with pytest.raises(UsageError, match="/model exists, and nothing is overwritten"):
        agent.export(tmp_path / "model", 10)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model", "model.json"}
    assert (tmp_path / "model" / "saved_model.pb").exists()


@pytest.mark.parametrize("suffix", ["", ".onnx"])
@pytest.mark.parametrize("taken", [0, 1])
def test_an_export_that_this_node_does_not_see_yet_is_left_alone(tmp_path, suffix, taken):
    """On a network file system, a node may believe for a minute that a name is free."""
    names = (f"model{suffix}", f"model{suffix}.json")
    theirs = tmp_path / names[taken] / ("file" if (suffix, taken) == ("", 0) else "")
    partial = tmp_path / "place" / names[0]
    for file in (theirs, partial if suffix else partial / "saved_model.pb"):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("theirs")
    with pytest.raises(UsageError, match=rf"^{tmp_path}/{names[taken]} exists, and nothing is overwritten: choose an"):
        exports._publish(partial, *(tmp_path / name for name in names), "mine")
    assert {path.name for path in tmp_path.iterdir()} == {"place", names[taken]}
    assert theirs.read_text() == "theirs"


def test_the_pages_example_plays_without_ddrl(tmp_path, monkeypatch, capsys):
    agent_of(tmp_path / "run", "ppo", "Taxi-v4").export(tmp_path / "policy", 10)
    (code,) = (code for code in pages.blocks(PAGE, "python") if "policy.json" in code)
    assert "ddrl" not in code
    monkeypatch.chdir(tmp_path)
    exec(compile(code, PAGE.name, "exec"), {})
    assert -200.0 <= float(capsys.readouterr().out) <= 20.0, "an illegal action, which the mask forbids, costs 10"
