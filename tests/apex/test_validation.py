"""Which settings go together in Ape-X."""

from __future__ import annotations

import json
import re

import pytest

from ddrl import algorithms, rundir
from ddrl.commands import plan
from ddrl.config import validation
from ddrl.errors import UsageError
from ddrl.placement.resources import check_machine
from ddrl.types import Machine
from tests.test_combinations import config_of

FOUR = Machine(4, 1 << 40)


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("ba3c", {"actors": 2}, "--actors 2: ba3c does not learn from a replay; leave it at 0, or train apex-dqn"),
        (
            "dqn",
            {"actors": 2},
            "--schedule concurrent: actors and learner do not wait for each other; use asynchronous",
        ),
        (
            "dqn",
            {"replay_shards": 2},
            "--replay-shards 2: there are no actors to fill such a replay; train apex-dqn, with",
        ),
        ("a2c", {"samples_per_insert": 2.0}, "--samples-per-insert 2.0: there are no actors"),
        ("apex-dqn", {"actors": -1}, "--actors -1: must be between 0 and 1000000"),
        ("apex-dqn", {"replay_shards": 0}, "--replay-shards 0: must be a finite number of at least 1"),
        (
            "apex-dqn",
            {"workers": 2, "parameter_servers": 1},
            "--workers 2: one learner takes all batches, and the --actors act; use 1",
        ),
        (
            "apex-dqn",
            {"exchange": "allreduce", "parameter_servers": None},
            "--exchange allreduce: actors fetch parameters",
        ),
        ("apex-dqn", {"parameter_servers": 1, "chief": "dedicated"}, "--chief dedicated: the learner is the chief"),
        (
            "apex-dqn",
            {"parameter_servers": 1, "updates": "asynchronous"},
            "--updates asynchronous: there is one learner",
        ),
        ("apex-dqn", {"groups": 2}, "--groups 2: an actor steps its simulators together"),
        ("apex-dqn", {"predictors": 1}, "--predictors 1: an actor queries the policy itself"),
        ("apex-dqn", {"batch_size": 0}, "--batch-size 0: a replay has no rollouts to take whole"),
        (
            "apex-dqn",
            {"replay_minimum": 1_000_001},
            "--replay-minimum 1000001: must be at most half of --replay-capacity",
        ),
        (
            "apex-dqn",
            {"replay_capacity": 100, "replay_shards": 3, "replay_minimum": 10},
            "--replay-shards 3: each would keep 33 transitions, fewer than --segment-length 50; use fewer shards",
        ),
        ("apex-dqn", {"n_step": 60}, "--n-step 60: must be at most --segment-length 50"),
        ("apex-dqn", {"target_period": 80}, "--target-period 80: the learner does not count the actors' steps"),
        ("apex-dqn", {"steps_per_update": 1}, "--steps-per-update 1: the learner does not wait for actors"),
        ("apex-dqn", {"eviction_exponent": 0.5}, "--eviction-exponent 0.5: must be between -2.0 and 0.0"),
        ("apex-dqn", {"samples_per_insert": -1.0}, "--samples-per-insert -1.0: must be between 0.0 and"),
        ("apex-dqn", {"deterministic": True}, "--schedule asynchronous: --deterministic promises equal bits"),
        ("apex-dqn", {"reset": "in-pause", "game": "CartPole-v1"}, "--reset in-pause: the asynchronous schedule"),
        ("apex-dpg", {"network": "nature"}, "--network nature: dpg has dense layers only"),
        ("apex-dpg", {"target_updates": 50}, "--target-updates 50: Ape-X has --target-every-updates instead"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(name, changes, message):
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        config_of(name, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["apex-dqn", "apex-dpg"])
@pytest.mark.parametrize("preset", ["default", "laptop", "smoke"])
def test_presets_come_back_from_their_run_directory(name, preset, tmp_path):
    path, config = rundir.create_run_dir(config_of(name, preset, run_dir=str(tmp_path / "run")))
    assert rundir.load_config(path) == config and config.title == name
    assert not config.single_process and config.ranks == 1 + config.apex.actors + 1 + 1


def test_the_paper():
    config = algorithms.preset("default", "pong", FOUR, "apex-dqn")
    algorithm, replay, apex, optimizer = config.algorithm, config.replay, config.apex, config.optimizer
    assert (algorithm.n_step, algorithm.double, algorithm.dueling) == (3, True, True)
    assert (algorithm.epsilon_end, algorithm.epsilon_ladder, algorithm.epsilon_steps) == (0.4, 7.0, 0)
    assert (replay.replay_capacity, replay.replay_minimum, replay.priority_exponent) == (2_000_000, 50_000, 0.6)
    assert replay.importance(10**6, 0.0) == replay.importance(0, 0.0) == 0.4
    assert (apex.segment_length, apex.refresh_every_frames, apex.target_every_updates, apex.prefetch) == (
        50,
        400,
        2500,
        16,
    )
    assert (optimizer.batch_size, optimizer.learning_rate, optimizer.clip_global_norm) == (512, 6.25e-5, 40.0)


def test_batches_ahead_of_a_small_replay_are_warned_of():
    (warning,) = validation.warnings(config_of("apex-dqn", "smoke", prefetch=64))
    assert "64 batches of 32 are drawn ahead" in warning and "lower --prefetch" in warning
    assert not validation.warnings(config_of("apex-dqn"))


def test_more_actors_than_a_machine_can_bear_are_refused():
    config = config_of("apex-dqn", "smoke", actors=40)
    with pytest.raises(
        UsageError, match="42 ranks that compute are too many for 2 cores, at most 16 for each: lower --actors"
    ):
        check_machine(config, Machine(2, 1 << 40))
    with pytest.raises(UsageError, match="GB of memory .*: lower --actors"):
        check_machine(config, Machine(4, 1 << 34))
    (warning,) = check_machine(config_of("apex-dqn", "smoke", actors=8), Machine(2, 1 << 40))
    assert warning == "the learner and 8 actors share 2 cores: expect them to take turns"


def test_a_plan_on_two_nodes(capsys):
    options = ["apex-dqn", "--preset", "smoke", "--actors", "4", "--replay-shards", "2", "--nodes", "2"]
    assert plan.main([*options, "--cpus-per-node", "8", "--json", "-"], {}) == 0
    answer = json.loads(capsys.readouterr().out)
    names = [rank["name"] for rank in answer["ranks"]]
    assert sorted(names) == sorted(
        ["worker 0, chief", *(f"actor {i}" for i in range(4)), "replay shard 0", "replay shard 1", "evaluator"]
    )
    by_name = {rank["name"]: rank for rank in answer["ranks"]}
    assert by_name["worker 0, chief"]["simulators"] == 0 and by_name["actor 0"]["simulators"] == 4
    assert {by_name[f"replay shard {i}"]["host"] for i in range(2)} == {"node1", "node2"}
    assert by_name["replay shard 0"]["memory_bytes"] > 10_000 * 50 * 4, "the replay counts"
    assert answer["totals"]["simulators"] == 16 and answer["totals"]["effective_batch"] == 32


def test_the_rate_of_apex_falls_over_updates_alone():
    with pytest.raises(
        UsageError, match="--learning-rate-agent-steps 1000: the learner does not count the actors' steps"
    ):
        config_of("apex-dqn", learning_rate_agent_steps=1_000)
    with pytest.raises(UsageError, match="--importance-agent-steps 1000: the learner does not count the actors' steps"):
        config_of("apex-dqn", importance_agent_steps=1_000)
