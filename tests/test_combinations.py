"""Settings that do not go together: one line that names both sides."""

from __future__ import annotations

import dataclasses
import re

import pytest

from ddrl import presets
from ddrl.errors import UsageError
from ddrl.presets import Machine

MACHINE = Machine(2, 16 * 10**9)
SYNCHRONOUS_SERVERS = {"workers": 2, "exchange": "parameter_server", "parameter_servers": 1}


def config_of(name, preset="default", **changes):
    """A preset of an algorithm, with settings of any group changed."""
    config = presets.preset(preset, None, MACHINE, name)
    groups = {}
    for setting, value in changes.items():
        group = next(g.name for g in dataclasses.fields(config) if hasattr(getattr(config, g.name), setting))
        groups.setdefault(group, {})[setting] = value
    replaced = {group: dataclasses.replace(getattr(config, group), **values) for group, values in groups.items()}
    return dataclasses.replace(config, **replaced)


@pytest.mark.parametrize("name", presets.NAMES)
def test_the_defaults_of_every_algorithm_go_together(name):
    assert config_of(name).title == name
    assert presets.preset("laptop", "pong", MACHINE, name).network.network == "a3c"
    assert presets.preset("smoke", None, MACHINE, name).environment.game == "ddrl/Catch-v0"


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("ba3c", {"schedule": "double-buffered"}, "--schedule double-buffered: ba3c has no rollouts"),
        ("ba3c", {"rollout_length": 10}, "--rollout-length 10: ba3c learns from unrolls of --unroll-length"),
        ("a2c", {"schedule": "asynchronous"}, "--schedule asynchronous: a2c learns from its own policy's rollouts"),
        ("a2c", {"rollout_length": 12}, "--rollout-length 12: must be a multiple of --unroll-length 5"),
        ("a2c", {"batch_size": 30}, "--batch-size 30: does not divide the rollout of 80 data-points"),
        ("a2c", {"batch_size": 40, "simulators": 16}, "--batch-size 40: a2c takes so many steps of all simulators"),
        ("a2c", {"predict_batch": 4}, "--predict-batch 4: a2c steps whole groups"),
        ("a2c", {"refresh_every_steps": 2}, "--refresh-every-steps 2: nothing newer comes before a rollout's end"),
        ("ppo", {"batch_size": 300}, "--batch-size 300: does not divide the rollout of 1024 data-points"),
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
        ("impala", {"reset": "in-pause", "game": "CartPole-v1"}, "--reset in-pause: the asynchronous schedule makes no pause"),
        ("hts-a2c", {"reset_at_checkpoint": True}, "--reset-at-checkpoint True: a rollout is being acted"),
        (
            "hts-ppo",
            {**SYNCHRONOUS_SERVERS, "quorum": 1},
            "--quorum 1: the lag of --schedule double-buffered is one rollout exactly",
        ),
        (
            "hts-ppo",
            {**SYNCHRONOUS_SERVERS, "updates": "asynchronous"},
            "--updates asynchronous: the lag of --schedule double-buffered is one rollout exactly",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(name, changes, message):
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        config_of(name, **changes)
    assert "\n" not in str(error.value)


def test_a_preset_of_one_algorithm_is_refused_for_another():
    with pytest.raises(UsageError, match="--preset ba3c-paper is one of ba3c, not of ppo"):
        presets.preset("ba3c-paper", None, MACHINE, "ppo")
    with pytest.raises(UsageError, match="sarsa: there is no such algorithm"):
        presets.preset("default", None, MACHINE, "sarsa")
