"""Agents of untrained networks: actions, drawn ones, values; what they refuse; exports that act the same."""

from __future__ import annotations

import importlib.util
import types

import gymnasium
import numpy as np
import pytest

import ddrl
from ddrl import algorithms, checkpoint, cli, rundir
from ddrl.algorithms import network_for
from ddrl.envs import make_environment
from ddrl.errors import UsageError
from ddrl.evaluation import agent as agents
from ddrl.evaluation import export as exports
from ddrl.evaluation.agent import load_agent
from ddrl.evaluation.environment import make_environment as one_game
from ddrl.evaluation.newest import EvaluateArguments, evaluate_newest
from ddrl.ops.draws import draw_actions, uniforms
from ddrl.types import Discrete, Machine

has_onnx = importlib.util.find_spec("tf2onnx") is not None and importlib.util.find_spec("onnxruntime") is not None
FORMATS = ["model", pytest.param("model.onnx", marks=pytest.mark.skipif(not has_onnx, reason="no tf2onnx here"))]


class FromOne(gymnasium.Env):
    """Two actions, called 1 and 2."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.full(3, 0.5), 1.0, True, False, {}


class Narrow(FromOne):
    """Its actions have a narrower type than those of a policy."""

    action_space = gymnasium.spaces.Discrete(2, start=1, dtype=np.int8)


class Shaped(FromOne):
    """Actions are an array of this shape and type."""

    def __init__(self, shape, dtype="float32"):
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, shape, np.dtype(dtype))


gymnasium.register("test/FromOne-v0", FromOne)
gymnasium.register("test/Narrow-v0", Narrow)
gymnasium.register("test/Half-v0", Shaped, kwargs={"shape": (2,), "dtype": "float16"})
gymnasium.register("test/Square-v0", Shaped, kwargs={"shape": (2, 2)})
gymnasium.register("test/Number-v0", Shaped, kwargs={"shape": ()})


def run_of(path, algorithm, game, **groups):
    """The directory of a run whose checkpoint has parameters that no one has trained; their last bits are spread."""
    config = algorithms.preset("default", game, Machine(2, 16 * 10**9), algorithm)
    path, config = rundir.create_run_dir(config.changed(**{"run": {"run_dir": str(path)}, **groups}))
    env = make_environment(config.environment, 1, training=False)
    network = network_for(config, env.observation_shape, env.observation_dtype, env.action_space)
    env.close()
    parameters = network.initial_parameters(1)
    parameters += np.random.default_rng(2).normal(0.0, 0.02, parameters.shape).astype(np.float32)
    state = checkpoint.Checkpoint(
        5, 5, 10**6, 1.0, parameters, {}, 5, network.parameter_shapes, config=rundir.config_to_dict(config)
    )
    checkpoint.save(path, state)
    return path


MLP = {"network": {"network": "mlp"}}
A3C = {"network": {"network": "a3c", "compute_dtype": "bfloat16"}}
COLOR = {"network": {"network": "ba3c"}, "environment": {"protocol": "ba3c"}}
RUNS = {
    "policy of vectors": ("ppo", "CartPole-v1", MLP),
    "convolutions with pooling, in color": ("ba3c", "pong", COLOR),
    "convolutions on blocks, in bfloat16": ("a2c", "breakout", A3C),
    "dueling distributions": ("rainbow", "pong", {}),
    "values": ("dqn", "CartPole-v1", MLP),
    "a Gaussian": ("ppo", "Pendulum-v1", MLP),
    "deterministic": ("dpg", "Pendulum-v1", {}),
    "squashed": ("sac", "Pendulum-v1", {}),
}  # fmt: skip


@pytest.fixture(scope="module", params=RUNS)
def agent(request, tmp_path_factory):
    algorithm, game, groups = RUNS[request.param]
    path = run_of(tmp_path_factory.mktemp("runs") / "run", algorithm, game, **groups)
    return load_agent(path, (1, 64), compute_dtype="float32", seed=3)


@pytest.fixture(scope="module")
def observations(agent):
    return next(exports.game_observations(agent, 12))


def test_one_and_many(agent, observations):
    actions, values = agent.act(observations), agent.values(observations)
    assert actions.shape == (12, *agent.action_space.action_shape) and values.shape == (12,)
    for i in (0, 11):
        np.testing.assert_allclose(agent.act(observations[i]), actions[i], atol=1e-4)
        np.testing.assert_allclose(agent.values(observations[i]), values[i], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="without observations"):
        agent.act(observations[:0])


def test_drawn_actions_are_legal_and_follow_the_seed(agent, observations):
    agent._drawn = 0
    first = [agent.act(observations, greedy=False) for _ in range(3)]
    agent._drawn = 0
    again = [agent.act(observations, greedy=False) for _ in range(3)]
    np.testing.assert_array_equal(first, again)
    game = one_game(agent.config.run.run_dir)
    assert all(game.action_space.contains(action.astype(game.action_space.dtype)) for row in first for action in row)
    if agent.config.algorithm.name in ("ppo", "sac", "dpg"):
        assert not np.array_equal(first[0], first[1]), "another number for each draw"


def test_exploration_begins_after_the_minimum_of_a_replay_where_there_is_one(monkeypatch):
    """An algorithm without a replay may have a way of its own to draw actions, too."""
    told = []
    known = types.SimpleNamespace(draw=lambda settings, exploration: told.append(exploration.agent_steps(np.zeros(1))))
    monkeypatch.setattr(agents, "algorithm_of", lambda settings: known)
    for algorithm in ("dqn", "a2c"):
        config = algorithms.preset("default", "CartPole-v1", Machine(2, 16 * 10**9), algorithm)
        assert config.replay.replay_minimum == 50_000
        agents._draw(config, types.SimpleNamespace(agent_steps=60_000), Discrete(2))
    assert [steps.tolist() for steps in told] == [[10_000], [60_000]]


def test_probabilities_or_q_values(agent, observations):
    name = agent.config.algorithm.name
    ask = {"probabilities": agent.probabilities, "q_values": agent.q_values}
    has = set()
    for kind, function in ask.items():
        try:
            numbers = function(observations)
            has.add(kind)
        except UsageError as error:
            assert agent.config.title in str(error)
            for other in str(error).rpartition("ask for ")[2].split(" or "):
                getattr(agent, other)(observations)  # is not refused as well
            continue
        np.testing.assert_array_equal(numbers.argmax(axis=1), agent.act(observations))
        if kind == "probabilities":
            np.testing.assert_allclose(numbers.sum(axis=1), 1.0, rtol=1e-5)
            picked, _ = draw_actions(np.log(numbers), uniforms(3, np.arange(12), np.full(12, 7)))
            agent._drawn = 7
            np.testing.assert_array_equal(agent.act(observations, greedy=False), picked)
        else:
            np.testing.assert_allclose(numbers.max(axis=1), agent.values(observations), rtol=1e-5)
    discrete = agent.config.environment.game != "Pendulum-v1"
    assert has == ({"q_values" if name == "dqn" else "probabilities"} if discrete else set())


def test_other_observations_are_refused(agent, observations):
    with pytest.raises(ValueError, match="ddrl.make_environment"):
        agent.act(np.zeros((3, 3, 3, 3, 3)))
    if agent.observation_dtype == np.uint8:
        with pytest.raises(ValueError, match="of type float32, and the network takes uint8"):
            agent.act(observations.astype(np.float32) / 255.0)
    else:
        wide = agent.act(observations.astype(np.float64))
        np.testing.assert_array_equal(wide, agent.act(observations))


def test_an_observation_of_several_entries_is_an_array_of_fields_and_no_dict(tmp_path):
    run = run_of(tmp_path / "run", "ppo", "tests.envs.doors:ddrl-test/OpenDoors-v0", **MLP)
    agent = load_agent(run, (1,), compute_dtype="float32")
    observation, _ = one_game(run).reset(seed=1)
    own = np.zeros((), agent.observation_dtype)
    for name in own.dtype.names:
        own[name] = observation[name]
    assert agent.act(own) == agent.act(observation)
    with pytest.raises(ValueError, match=r"of type object, .*: ddrl.make_environment\(run\) gives observations as in"):
        agent.act({name: observation[name] for name in own.dtype.names})


def test_an_agent_its_environment_and_its_export_have_the_options_of_the_game(tmp_path):
    options = {"environment": {"game_options": ("size=6",)}}
    run = run_of(tmp_path / "run", "ppo", "ddrl/DeepSea-v0", **MLP, **options)
    agent = load_agent(run, (1, 64), compute_dtype="float32")
    observation, _ = one_game(run).reset(seed=1)
    assert observation.shape == agent.observation_shape == (1, 6, 6)
    assert agent.act(observation) in (0, 1)
    assert agent.export(tmp_path / "model", 20)["same_actions"] == 20


@pytest.mark.parametrize("name", FORMATS)
def test_exports_act_the_same(agent, name, tmp_path):
    compared = agent.export(tmp_path / name, 100)
    assert (compared["observations"], compared["same_actions"]) == (100, 100)
    assert compared["largest_difference"] < 1e-5
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.json"}, "nothing else is left beside it"
    with pytest.raises(UsageError, match="exists, and nothing is overwritten"):
        agent.export(tmp_path / name, 100)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("game, shape", [("Square", (2, 2)), ("Number", ())])
def test_exported_actions_have_the_shape_that_the_games_step_takes(game, shape, name, tmp_path):
    run = run_of(tmp_path / "run", "ppo", f"test/{game}-v0", **MLP)
    agent = load_agent(run, (1, 64), compute_dtype="float32")
    assert agent.export(tmp_path / name, 20)["same_actions"] == 20
    copy = (exports._read_onnx if name.endswith(".onnx") else exports._read_saved_model)(tmp_path / name)
    assert copy({"observation": np.zeros((3, 3), np.float32)})["action"].shape == (3, *shape)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("game, dtype", [("Narrow", np.int8), ("Half", np.float16)])
def test_actions_have_the_type_that_the_games_step_takes(game, dtype, name, tmp_path):
    agent = load_agent(run_of(tmp_path / "run", "ppo", f"test/{game}-v0", **MLP), (1, 64), compute_dtype="float32")
    env = one_game(tmp_path / "run")
    observation, _ = env.reset(seed=1)
    drawn = [agent.act(observation, greedy=False) for _ in range(20)]
    assert all(action.dtype == dtype and env.action_space.contains(action) for action in drawn)
    assert env.step(drawn[0])[2]
    assert agent.export(tmp_path / name, 20)["same_actions"] == 20
    copy = (exports._read_onnx if name.endswith(".onnx") else exports._read_saved_model)(tmp_path / name)
    assert copy({"observation": np.zeros((3, 3), np.float32)})["action"].dtype == dtype


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("network", ["test_keras_network:images", "test_recurrent_layers:rows"])
def test_a_keras_network_on_images_is_exported(network, name, tmp_path):
    network = f"tests.networks.{network}"
    agent = load_agent(run_of(tmp_path / "run", "ppo", "ddrl/CatchPicture-v0", network={"network": network}))
    assert agent.export(tmp_path / name, 20)["same_actions"] == 20


def test_what_a_format_cannot_hold_is_refused_in_one_line(tmp_path, monkeypatch):
    def fails(agent, path):
        raise RuntimeError("no such\nop")

    agent = load_agent(run_of(tmp_path / "run", "ppo", "CartPole-v1", **MLP), compute_dtype="float32")
    monkeypatch.setattr(exports, "_write_saved_model", fails)
    with pytest.raises(UsageError, match="/model cannot be written: RuntimeError: no such / op$"):
        agent.export(tmp_path / "model", 20)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_copy_that_acts_otherwise_is_not_written(tmp_path, monkeypatch):
    agent = load_agent(run_of(tmp_path / "run", "ppo", "CartPole-v1", **MLP), compute_dtype="float32")
    read = exports._read_saved_model

    def other(path):
        outputs = read(path)
        return lambda rows: {name: value + (name == "value") * 0.01 for name, value in outputs(rows).items()}

    monkeypatch.setattr(exports, "_read_saved_model", other)
    with pytest.raises(UsageError, match="is not written: its outputs differ by 0.01"):
        agent.export(tmp_path / "model", 20)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_copy_that_gives_no_numbers_is_not_written(tmp_path, monkeypatch):
    agent = load_agent(run_of(tmp_path / "run", "ppo", "CartPole-v1", **MLP), compute_dtype="float32")
    read = exports._read_saved_model

    def other(path):
        outputs = read(path)
        return lambda rows: {n: value * np.nan if n == "value" else value for n, value in outputs(rows).items()}

    monkeypatch.setattr(exports, "_read_saved_model", other)
    with pytest.raises(UsageError, match="is not written: its outputs differ by nan"):
        agent.export(tmp_path / "model", 20)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_copy_of_what_is_no_number_is_like_it():
    numbers = np.array([1.0, np.nan, np.inf, 4.0], np.float32)
    np.testing.assert_array_equal(exports._difference(numbers, numbers), 0.0)
    np.testing.assert_array_equal(
        exports._difference(np.array([1.0, 2.0, np.nan, 8.0]), numbers), [0.0, np.nan, np.nan, 1.0]
    )


def test_neighbors_of_float16_count_as_equal():
    numbers = np.array([0.75, -1.5, 300.0, np.nan], np.float16)
    np.testing.assert_array_equal(exports._difference(np.nextafter(numbers, np.float16(9)), numbers), 0.0)
    assert (exports._difference(numbers + np.float16(0.5), numbers)[:3] > exports.TOLERANCE).all()


def test_signatures_have_names(tmp_path, capsys):
    import tensorflow as tf

    path = run_of(tmp_path / "run", "ppo", "test/FromOne-v0", **MLP)
    assert cli.main(["export", str(path), "--observations", "10"]) == 0
    said = capsys.readouterr().out
    assert "the same action in 10 of 10 observations" in said
    assert f"{path / 'saved_model'}.json lists its inputs and outputs" in said
    loaded = tf.saved_model.load(str(path / "saved_model"))
    assert set(loaded.signatures) == {"serving_default", "act", "evaluate"}
    rows = tf.zeros((3, 3))
    assert set(loaded.signatures["act"](observation=rows)) == {"action"}
    assert set(loaded.signatures["evaluate"](observation=rows)) == {"action", "value", "probabilities"}


def test_actions_are_called_as_the_game_calls_them(tmp_path):
    agent = load_agent(run_of(tmp_path / "run", "ppo", "test/FromOne-v0", **MLP), seed=1)
    game = one_game(tmp_path / "run")
    observation, _ = game.reset(seed=1)
    assert observation.dtype == np.float32 and game.observation_space.contains(observation)
    actions = {int(agent.act(observation, greedy=False)) for _ in range(100)}
    assert actions == {1, 2} and agent.act(observation) in actions
    assert game.step(agent.act(observation))[2]


def test_a_game_whose_observations_are_numbers_has_a_space_of_zeros_and_ones(tmp_path):
    path = run_of(tmp_path / "run", "ppo", "FrozenLake-v1", **MLP)
    agent, game = load_agent(path, (1,)), one_game(path)
    observation, _ = game.reset(seed=1)
    assert observation.dtype == bool and observation.sum() == 1 and game.observation_space.contains(observation)
    assert game.action_space.contains(agent.act(observation))
    game.close()


def test_an_epsilon_that_continuous_actions_would_not_have_is_refused(tmp_path):
    path = run_of(tmp_path / "run", "ppo", "Pendulum-v1", **MLP)
    with pytest.raises(UsageError, match="--epsilon 0.3: continuous actions are evaluated without noise; leave it out"):
        evaluate_newest(EvaluateArguments(str(path), games=1, epsilon=0.3))


def test_a_run_plays_as_the_command_does(tmp_path, capsys):
    path = run_of(tmp_path / "run", "ppo", "ddrl/Catch-v0", **MLP)
    video = ddrl.load(path).play(tmp_path / "run.gif", seed=np.int64(3), checkpoint=5)
    assert video == tmp_path / "run.gif"
    assert cli.main(["play", str(path), "--video", str(tmp_path / "command.gif"), "--seed", "3"]) == 0
    assert video.read_bytes() == (tmp_path / "command.gif").read_bytes()
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'command.gif'}: score ")


def test_a_packages_absence_is_said(tmp_path, monkeypatch):
    agent = load_agent(run_of(tmp_path / "run", "ppo", "CartPole-v1", **MLP), batch_sizes=(1,))
    monkeypatch.setattr(exports.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'ddrl\[onnx\]'"):
        agent.export(tmp_path / "model.onnx")


@pytest.mark.parametrize("actions", ["one", "pair", "bits", "box"])
def test_games_of_any_spaces(actions, tmp_path):
    game = {"one": "Doors", "pair": "PairDoors", "bits": "BitDoors", "box": "BoxDoors"}[actions]
    path = run_of(tmp_path / "run", "ppo", f"tests.envs.doors:ddrl-test/{game}-v0", **MLP)
    agent = load_agent(path, (1, 64))
    env = one_game(path)
    observation, _ = env.reset(seed=1)
    for greedy in (True, False) * 8:
        action = agent.act(observation, greedy)
        assert env.action_space.contains(action), action
        observation, _, terminated, truncated, _ = env.step(action)  # raises for a closed door
        if terminated or truncated:
            observation, _ = env.reset()
    several = np.stack([observation] * 3)
    assert len(agent.act(several)) == len(agent.values(several)) == 3
    if "action_mask" in several.dtype.names:
        several["action_mask"][1] = False
        with pytest.raises(ValueError, match="an action_mask of zeros, which allows no action: give the mask of the g"):
            agent.act(several)
        assert len(agent.values(several)) == 3  # an episode may end where no action is legal
    env.close()
