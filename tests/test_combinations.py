"""Settings that do not go together: one line that names both sides."""

from __future__ import annotations

import dataclasses
import re

import pytest

from ddrl import algorithms, rundir
from ddrl.config import validation
from ddrl.errors import UsageError
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)
SYNCHRONOUS_SERVERS = {"workers": 2, "exchange": "parameter_server", "parameter_servers": 1}


def config_of(name, preset="default", **changes):
    """A preset of an algorithm, with settings of any group changed."""
    config = algorithms.preset(preset, None, MACHINE, name)
    groups = {}
    for setting, value in changes.items():
        group = next(g.name for g in dataclasses.fields(config) if hasattr(getattr(config, g.name), setting))
        groups.setdefault(group, {})[setting] = value
    replaced = {group: dataclasses.replace(getattr(config, group), **values) for group, values in groups.items()}
    return dataclasses.replace(config, **replaced)


@pytest.mark.parametrize("name", list(algorithms.names()))
def test_the_defaults_of_every_algorithm_go_together(name):
    assert config_of(name).title == name
    network, game = (
        ("mlp", "Pendulum-v1") if algorithms.algorithm_named(name).name in ("dpg", "sac") else ("a3c", "ddrl/Catch-v0")
    )
    assert algorithms.preset("laptop", "pong", MACHINE, name).network.network == network
    assert algorithms.preset("smoke", None, MACHINE, name).environment.game == game


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("ba3c", {"schedule": "double-buffered"}, "--schedule double-buffered: ba3c has no rollouts"),
        (
            "ba3c",
            {"schedule": "synchronized", "simulators": 2, "groups": 1, "batch_size": 64, "epochs": 2},
            "--epochs 2: the synchronized schedule uses each data-point of ba3c once",
        ),
        ("ba3c", {"rollout_length": 10}, "--rollout-length 10: ba3c learns from unrolls of --unroll-length"),
        ("a2c", {"schedule": "asynchronous"}, "--schedule asynchronous: a2c learns from its own policy's rollouts"),
        ("a2c", {"rollout_length": 12}, "--rollout-length 12: must be a multiple of --unroll-length 5"),
        ("a2c", {"batch_size": 30}, "--batch-size 30: does not divide the rollout of 80 data-points"),
        ("a2c", {"batch_size": 40, "simulators": 16}, "--batch-size 40: a2c takes whole steps of all simulators"),
        ("a2c", {"predict_batch": 4}, "--predict-batch 4: a2c steps whole groups"),
        ("a2c", {"refresh_every_steps": 2}, "--refresh-every-steps 2: nothing newer comes before a rollout ends"),
        ("ppo", {"batch_size": 300}, "--batch-size 300: does not divide the rollout of 1024 data-points"),
        (
            "ppo",
            {"batch_size": 1, "normalize_advantages": True},
            "--batch-size 1: the advantage of a single data-point less its mean is 0",
        ),
        (
            "ba3c",
            {"batch_size": 1, "normalize_advantages": True},
            "--batch-size 1: the advantage of a single data-point less its mean is 0",
        ),
        ("ppo", {"simulators": 7, "groups": 2}, "--simulators 7: must be a multiple of --groups 2"),
        ("impala", {"schedule": "synchronized"}, "--schedule synchronized: impala corrects for the lag"),
        ("impala", {"batch_size": 100}, "--batch-size 100: must be a multiple of 320, which is --unroll-length 20 x"),
        ("impala", {"deterministic": True}, "--schedule asynchronous: --deterministic promises equal bits"),
        ("a3c", {"deterministic": True}, "--exchange central_store: --deterministic promises equal bits"),
        (
            "ppo",
            {**SYNCHRONOUS_SERVERS, "deterministic": True, "quorum": 1},
            "--quorum 1: --deterministic promises equal bits",
        ),
        (
            "ppo",
            {**SYNCHRONOUS_SERVERS, "deterministic": True, "updates": "asynchronous"},
            "--updates asynchronous: --deterministic promises equal bits",
        ),
        (
            "impala",
            {"reset": "in-pause", "game": "CartPole-v1"},
            "--reset in-pause: the asynchronous schedule has no pause",
        ),
        (
            "dqn",
            {"reset": "in-pause", "schedule": "concurrent", "game": "CartPole-v1"},
            "--reset in-pause: a target period has no pause",
        ),
        (
            "ba3c",
            {
                "reset": "in-pause",
                "schedule": "synchronized",
                "game": "CartPole-v1",
                "simulators": 2,
                "unroll_length": 5,
            },
            "--reset in-pause: ba3c has no rollouts to reset between; use at-once or swap",
        ),
        ("hts-a2c", {"reset_at_checkpoint": True}, "--reset-at-checkpoint: a rollout is in progress"),
        (
            "hts-ppo",
            {"groups": 2, "simulators": 4, "predictors": 1, "predict_batch": 1},
            "--predict-batch 1: predictors take whole groups, here of 2 observations",
        ),
        (
            "hts-ppo",
            {
                "game": "football/academy_3_vs_1_with_keeper",
                "football_players": 3,
                "groups": 2,
                "simulators": 4,
                "predictors": 1,
                "predict_batch": 2,
            },
            "--predict-batch 2: predictors take whole groups, here of 6 observations",
        ),
        ("a3c", {"reset_at_checkpoint": True}, "--reset-at-checkpoint: with asynchronous updates no run equals"),
        (
            "a2c",
            {**SYNCHRONOUS_SERVERS, "updates": "asynchronous", "refresh_every_steps": 2},
            "--refresh-every-steps 2: nothing newer comes before a rollout ends; use --exchange central_store",
        ),
        (
            "hts-ppo",
            {**SYNCHRONOUS_SERVERS, "quorum": 1},
            "--quorum 1: the lag of --schedule double-buffered is exactly one rollout",
        ),
        (
            "hts-ppo",
            {**SYNCHRONOUS_SERVERS, "updates": "asynchronous"},
            "--updates asynchronous: the lag of --schedule double-buffered is exactly one rollout",
        ),
        ("dqn", {"replay_minimum": 1_000_001}, "--replay-minimum 1000001: must be at most --replay-capacity"),
        (
            "rainbow",
            {"replay_minimum": 11},
            "--replay-minimum 11: the first transition takes --n-step 3 steps of 4 simulators",
        ),
        (
            "rainbow",
            {"replay_minimum": 2, "simulators": 1, "n_step": 3},
            "--replay-minimum 2: the first transition takes --n-step 3 steps of 1 simulator; raise it to 3",
        ),
        (
            "dqn",
            {"n_step": 100, "replay_capacity": 800, "replay_minimum": 800},
            "--n-step 100: with 8 simulators, the replay holds only 100 steps of each; raise --replay-capacity",
        ),
        (
            "dqn",
            {"schedule": "synchronized"},
            "--schedule synchronized: dqn learns from a replay; use standard or concurrent",
        ),
        ("rainbow", {"schedule": "asynchronous"}, "--schedule asynchronous: dqn learns from a replay"),
        ("dqn", {"batch_size": 0}, "--batch-size 0: a replay has no rollouts to take whole"),
        (
            "dqn",
            {"rollout_length": 5},
            "--rollout-length 5: dqn acts with whole groups until its next update; leave it at 0",
        ),
        ("dqn", {"predictors": 1}, "--predictors 1: dqn acts with whole groups"),
        ("dqn", {"predict_batch": 4}, "--predict-batch 4: dqn acts with whole groups"),
        ("dqn", {"refresh_every_steps": 2}, "--refresh-every-steps 2: only rollouts of the synchronized schedule"),
        ("dqn", {"simulators": 6}, "--steps-per-update 4: 6 simulators step together; it must divide their number"),
        (
            "dqn",
            {"target_period": 9_998},
            "--target-period 9998: must be a multiple of --steps-per-update 4 and of the 8",
        ),
        ("dqn", {"target_period": 4}, "--target-period 4: must be a multiple of"),
        ("dqn", {"reset_at_checkpoint": True}, "--reset-at-checkpoint: a period is in progress"),
        ("dpg", {"network": "nature"}, "--network nature: dpg has dense layers only"),
        ("dpg", {"eval_epsilon": 0.05}, "--eval-epsilon 0.05: dpg is evaluated without noise; leave it at 0"),
        ("dqn", {"eval_actions": "drawn"}, "--eval-actions drawn: dqn has no policy that evaluations could draw from"),
        (
            "ppo",
            {"eval_actions": "drawn", "eval_epsilon": 0.1},
            "--eval-epsilon 0.1: drawn actions are random by themselves; use --eval-epsilon 0",
        ),
        ("a2c", {"eval_actions": "sampled"}, "--eval-actions sampled: must be one of greedy, drawn"),
        (
            "dpg",
            {"simulators": 16, "target_updates": 3},
            "--target-updates 3: 16 simulators step together; use a multiple of 2",
        ),
        (
            "dpg",
            {"schedule": "synchronized"},
            "--schedule synchronized: dpg learns from a replay; use standard or concurrent",
        ),
        ("dqn", {"policy_layers": (9,)}, "--policy-layers 9: dqn has the layers of --network; leave it out"),
        ("dqn", {"initial_log_deviation": -2.0}, "--initial-log-deviation -2.0: dqn has no Gaussian policy"),
        (
            "ba3c",
            {"schedule": "concurrent"},
            "--schedule concurrent: ba3c has no replay; leave it out, or train one that has a replay",
        ),
        ("a2c", {"schedule": "standard"}, "--schedule standard: a2c has no replay"),
        ("a2c", {"replay_capacity": 10}, "--replay-capacity 10: a2c has no replay; leave it out"),
        ("ba3c", {"priority_exponent": 0.5}, "--priority-exponent 0.5: ba3c has no replay; leave it out"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(name, changes, message):
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        config_of(name, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["ppo", "ba3c"])
def test_a_batch_of_one_data_point_learns_from_its_advantage_as_it_is(name):
    assert config_of(name, batch_size=1, normalize_advantages=False).batch_size == 1


@pytest.mark.parametrize("name", ["dqn", "categorical-dqn", "rainbow", "dpg"])
@pytest.mark.parametrize("preset", ["default", "laptop", "smoke"])
def test_presets_that_learn_from_a_replay_come_back_from_their_run_directory(name, preset, tmp_path):
    path, config = rundir.create_run_dir(config_of(name, preset, run_dir=str(tmp_path / "run")))
    assert rundir.load_config(path) == config and config.title == name
    assert config.single_process
    concurrent = name in ("dqn", "categorical-dqn") and preset != "laptop"
    assert config.sampling.schedule == ("concurrent" if concurrent else "standard")


@pytest.mark.parametrize(
    "name, changes, words",
    [
        (
            "categorical-dqn",
            {"value_max": 0.5},
            "is -10 to 0.5, and the rewards of one target alone reach +-1 (--reward",
        ),
        (
            "rainbow",
            {"value_min": -2.9},
            "reach +-2.97 (--reward-clip 1, --n-step 3); widen --value-min and --value-max",
        ),
        (
            "rainbow",
            {"reward_clip": 0.0},
            "and rewards are not clipped; returns beyond it count as its ends, so watch support_end",
        ),
    ],
)
def test_a_support_that_cannot_hold_the_returns_is_a_warning(name, changes, words):
    (warning,) = validation.warnings(config_of(name, **changes))
    assert words in warning and "\n" not in warning


@pytest.mark.parametrize("name", list(algorithms.names()))
def test_presets_warn_of_nothing(name):
    """But DPG's, whose paper has clipped rewards, for a game where these differ."""
    game = "dm_control/humanoid-stand-v0" if algorithms.algorithm_named(name).name in ("dpg", "sac") else None
    assert not validation.warnings(config_of(name, **({"game": game} if game else {})))
    assert not validation.warnings(config_of(name, "smoke"))


@pytest.mark.parametrize("name", ["dpg", "apex-dpg"])
def test_clipped_rewards_of_continuous_control_are_told_of(name):
    (line,) = validation.warnings(config_of(name))
    assert (
        "rewards of Pendulum-v1 are clipped to +-1" in line and "--reward-clip 0" in line and "--preset laptop" in line
    )
    assert validation.warnings(config_of(name, reward_clip=0.0)) == []


def test_a_preset_of_one_algorithm_is_refused_for_another():
    with pytest.raises(UsageError, match="--preset ba3c-paper is one of ba3c, not of ppo"):
        algorithms.preset("ba3c-paper", None, MACHINE, "ppo")
    with pytest.raises(UsageError, match="sarsa: there is no such algorithm"):
        algorithms.preset("default", None, MACHINE, "sarsa")


def test_concurrent_training_says_what_it_does_to_priorities():
    """Rainbow's own schedule is standard; the other one is possible, and told of."""
    assert validation.warnings(config_of("rainbow")) == []
    (line,) = validation.warnings(config_of("rainbow", schedule="concurrent"))
    assert "at the end of a target period, up to 2000 minibatches late" in line and "--schedule standard" in line
    assert validation.warnings(config_of("dqn")) == []
    assert "up to 100 minibatches late" in validation.warnings(config_of("dpg", "laptop", schedule="concurrent"))[0]


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("a2c", {"loss_reduction": "total"}, "--loss-reduction total: must be one of mean, sum"),
        ("ppo", {"clip_range_schedule": "cosine"}, "--clip-range-schedule cosine: must be one of constant, linear"),
        (
            "ppo",
            {"learning_rate_agent_steps": -1},
            "--learning-rate-agent-steps -1: must be a finite number of at least 0",
        ),
        ("dqn", {"evaluation_minutes": -1.0}, "--evaluation-minutes -1.0: must be a finite number of at least 0"),
    ],
)
def test_schedules_reductions_and_times_are_checked(name, changes, message):
    with pytest.raises(UsageError, match=message):
        config_of(name, **changes)
