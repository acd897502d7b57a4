"""Continuous actions, and spaces that nobody handles."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.observations import ObservationFormat, observation_of
from ddrl.envs.spaces import action_space_of, check_actions, check_legal, no_actions, random_action
from ddrl.errors import UsageError
from ddrl.types import Continuous, Discrete, MultiDiscrete

spaces = gymnasium.spaces
Box = spaces.Box


def test_pendulum_clips_to_its_bounds():
    config = EnvironmentConfig(game="Pendulum-v1")
    env, same = make_environment(config, 2), make_environment(config, 2)
    assert env.action_space == Continuous((-2.0,), (2.0,)) and env.observation_dtype == np.float32
    for one, action in ((env, [[5.0], [-0.5]]), (same, [[2.0], [-0.5]])):
        one.reset(0)
        one.recv()
        drawn = np.array(action, np.float32)
        one.send(drawn)
        assert drawn[0, 0] in (5.0, 2.0)  # what the policy drew stays as it was
    a, b = env.recv(), same.recv()
    assert np.array_equal(a.observation, b.observation) and np.array_equal(a.reward, b.reward)
    assert a.valid.all() and (a.reward < 0).all()


@pytest.mark.parametrize(
    "wrong", [np.zeros(2, np.float32), np.zeros((2, 2), np.float32), np.full((2, 1), np.nan, np.float32)]
)
def test_wrong_continuous_actions(wrong):
    with pytest.raises(ValueError, match=r"expected finite actions of shape \[2, 1\]"):
        check_actions(wrong, Continuous((-1.0,), (1.0,)), 2)


def test_clipping_keeps_what_has_no_bound():
    space = Continuous((-np.inf, -1.0), (np.inf, np.inf))
    taken = check_actions(np.array([[1e6, -7.0], [-1e6, 7.0]], np.float32), space, 2)
    assert taken.tolist() == [[1e6, -1.0], [-1e6, 7.0]] and taken.dtype == np.float32


def test_clipped_actions_are_within_bounds_that_float32_lacks():
    box = Box(-0.1, 0.1, (2,), np.float64)
    taken = check_actions(np.array([[-9.0, 9.0], [0.05, 0.0]], np.float32), action_space_of("game", box), 2)
    assert taken.dtype == np.float32 and all(box.contains(row) for row in taken)
    np.testing.assert_allclose(taken, [[-0.1, 0.1], [0.05, 0.0]], rtol=1e-6)


def test_random_actions_are_within_bounds():
    generator = np.random.default_rng(0)
    space = Continuous((-2.0, -np.inf, 0.0), (3.0, np.inf, np.inf))
    drawn = np.array([random_action(space, generator) for _ in range(400)])
    assert drawn.dtype == np.float32 and drawn.shape == (400, 3)
    assert drawn[:, 0].min() >= -2.0 and drawn[:, 0].max() <= 3.0 and abs(drawn[:, 0].mean() - 0.5) < 0.3
    assert abs(drawn[:, 1].std() - 1.0) < 0.15 and drawn[:, 2].min() >= 0.0
    assert {int(random_action(Discrete(3), generator)) for _ in range(60)} == {0, 1, 2}


@pytest.mark.parametrize(
    "space, expected",
    [
        (spaces.MultiDiscrete([[2, 3], [4, 1]]), MultiDiscrete((2, 3, 4, 1))),
        (spaces.MultiBinary((2, 2)), MultiDiscrete((2, 2, 2, 2))),
        (Box(-1, np.array([[1, 2]], np.float32), (1, 2)), Continuous((-1.0, -1.0), (1.0, 2.0))),
        (Box(-1, 1, ()), Continuous((-1.0,), (1.0,))),
    ],
)
def test_action_spaces(space, expected):
    assert action_space_of("game", space) == expected


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": spaces.Discrete(2)}),
        Box(0, 9, (2,), np.int32),
        spaces.Text(4),
        spaces.Sequence(spaces.Discrete(2)),
    ],
)
def test_action_spaces_that_nobody_handles(space):
    with pytest.raises(UsageError, match=f"game has the action space {type(space).__name__}.*supported are") as error:
        action_space_of("game", space)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(4),
        spaces.Graph(Box(0, 1, (2,)), None),
        spaces.Sequence(Box(0, 1, (2,))),
        spaces.Dict({"a": Box(0, 1, (2,)), "b": spaces.Tuple((spaces.Text(3),))}),
        spaces.OneOf((spaces.Discrete(2), Box(0, 1, (2,)))),
    ],
)
def test_observation_spaces_that_nobody_handles(space):
    with pytest.raises(UsageError, match="game has the observation space .*supported are Box, Discrete") as error:
        observation_of("game", space)
    assert "\n" not in str(error.value)


def test_a_number_too_large_for_one_hot():
    with pytest.raises(UsageError, match="Discrete.*of 1,000,000 values together; give its meaning as a Box"):
        observation_of("game", spaces.Discrete(1_000_000))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8, np.uint16, np.float32])
def test_numbers_become_float32(dtype):
    space = Box(0, 9, (2, 3), dtype)
    assert observation_of("game", space) == ((2, 3), np.float32)
    format = ObservationFormat("game", spaces.Dict({"a": space}))
    assert np.array_equal(format.array({"a": np.full((2, 3), 7, dtype)})["a"], np.full((2, 3), 7.0, np.float32))


def test_numbers_become_one_hot():
    format = ObservationFormat("game", spaces.Discrete(4, start=-1))
    assert (format.shape, format.dtype) == ((4,), bool)
    assert format.array(0).tolist() == [False, True, False, False]
    format = ObservationFormat("game", spaces.MultiDiscrete([2, 3], start=[1, 0]))
    assert format.array(np.array([2, 1])).tolist() == [False, True, False, True, False]
    format = ObservationFormat("game", spaces.MultiDiscrete([2, 3], np.uint64))
    assert format.array(np.array([1, 2], np.uint64)).tolist() == [False, True, False, False, True]
    format = ObservationFormat("game", spaces.Discrete(3, start=1, dtype=np.uint64))
    assert format.array(np.uint64(2)).tolist() == [False, True, False]
    assert ObservationFormat("game", spaces.MultiBinary((2, 2))).array([[0, 1], [1, 0]]).shape == (2, 2)


def test_entries_become_fields():
    space = spaces.Dict(
        {
            "image": Box(0, 255, (4, 4, 3), np.uint8),
            "inner": spaces.Dict({"a": Box(-1, 1, (2,), np.float64), "b": spaces.Discrete(3)}),
            "two": spaces.Tuple((spaces.MultiBinary(2), Box(0, 5, ()))),
        }
    )
    format = ObservationFormat("game", space)
    fields = [("image", "u1", (4, 4, 3)), ("inner/a", "f4", (2,)), ("inner/b", "?", (3,)), ("two/0", "?", (2,))]
    assert format.shape == () and format.dtype == np.dtype([*fields, ("two/1", "f4")])
    space.seed(0)
    for _ in range(20):
        given = space.sample()
        array = format.array(given)
        assert np.array_equal(array["image"], given["image"])
        assert np.array_equal(array["inner/a"], given["inner"]["a"].astype(np.float32))
        assert np.flatnonzero(array["inner/b"]).tolist() == [given["inner"]["b"]]
        assert np.array_equal(array["two/0"], given["two"][0]) and array["two/1"] == given["two"][1]


ROW = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "given",
    [
        ROW,
        ROW.astype(np.float64),
        ROW.astype(">f4"),
        np.asfortranarray(ROW),
        np.repeat(ROW, 2, 1)[:, ::2],
        ROW.tolist(),
    ],
    ids=["as wanted", "float64", "other byte order", "Fortran's order", "with gaps", "a list"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_entries_keep_their_numbers_however_they_lie_in_memory(given, masked):
    image = np.full((4, 4), 7, np.uint8)
    space = spaces.Dict({"row": spaces.Box(-9.0, 9.0, ROW.shape), "image": spaces.Box(0, 255, image.shape, np.uint8)})
    mask = np.array([True, False, True]) if masked else None
    array = ObservationFormat("game", space, 3 * masked).array({"row": given, "image": image}, mask)
    np.testing.assert_array_equal(array["row"], ROW)
    np.testing.assert_array_equal(array["image"], image)
    if masked:
        np.testing.assert_array_equal(array["action_mask"], mask)
    array["row"] = 0.0  # it is the caller's
    assert ROW.any() and array.shape == ()


@pytest.mark.parametrize(
    "space, given, message",
    [
        (spaces.Dict({"a": Box(0, 1, (2,))}), {"b": 1}, "without a"),
        (spaces.Dict({"a": Box(0, 1, (2,))}), {"a": np.zeros(1)}, r"an observation a of shape \(1,\).*has \(2,\)"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": 2}, "beyond its space"),
        (spaces.Discrete(3), -1, "beyond its space"),
        (spaces.Tuple((spaces.Discrete(3),)), (), "without 0"),
    ],
)
def test_observations_that_are_not_of_their_space(space, given, message):
    with pytest.raises(UsageError, match=f"game gave .*{message}") as error:
        ObservationFormat("game", space).array(given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "pixel, said", [(0.5, "float64 0.5 is no uint8"), (300, "int64 300 is no uint8"), (np.nan, "float64 nan is no")]
)
def test_pixels_that_a_cast_would_change_are_refused(pixel, said):
    format = ObservationFormat("game", spaces.Dict({"image": Box(0, 255, (2, 2), np.uint8), "speed": Box(0, 1, (1,))}))
    speed = np.zeros(1, np.float32)
    assert format.array({"image": np.full((2, 2), 7.0), "speed": speed})["image"].tolist() == [[7, 7], [7, 7]]
    with pytest.raises(UsageError, match=rf"game gave an observation image beyond its space \({said}"):
        format.array({"image": np.full((2, 2), pixel), "speed": speed})


def test_fields_of_one_name():
    both = spaces.Dict({"a/b": Box(0, 1, (2,)), "a": spaces.Dict({"b": Box(0, 1, (2,))})})
    with pytest.raises(UsageError, match="two entries of its observations have the same name"):
        observation_of("game", both)


def test_legal_actions():
    space, mask = MultiDiscrete((2, 3)), np.array([[0, 1, 0, 0, 1], [1, 1, 1, 0, 0]], bool)
    assert no_actions(space, 2, mask).tolist() == [[1, 2], [0, 0]]
    check_legal(np.array([[1, 2], [1, 0]]), space, mask)
    with pytest.raises(ValueError, match=r"action \[1 1\] in row 1 of 2 is not legal there"):
        check_legal(np.array([[1, 2], [1, 1]]), space, mask)
    check_legal(np.array([1]), Discrete(2), np.array([[False, True]]))
    with pytest.raises(ValueError, match="action 0 in row 0 of 1 is not legal"):
        check_legal(np.array([0]), Discrete(2), np.array([[False, True]]))
    generator = np.random.default_rng(0)
    drawn = {tuple(random_action(space, generator, mask[1])) for _ in range(60)}
    assert drawn == {(0, 0), (1, 0)}
    assert {int(random_action(Discrete(4), generator, np.array([0, 1, 0, 1], bool))) for _ in range(60)} == {1, 3}


def test_mujoco():
    pytest.importorskip("mujoco")
    env = make_environment(EnvironmentConfig(game="InvertedPendulum-v5"), 2)
    env.reset(1)
    env.recv()
    env.send(np.zeros((2, 1), np.float32))
    step = env.recv()
    assert step.observation.shape == (2, 4) and step.valid.all() and env.action_space.high == (3.0,)
