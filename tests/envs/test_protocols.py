"""Presets as whole values: a change to any of them changes what published scores mean."""

from __future__ import annotations

import json

import pytest

from ddrl.envs.protocols import PROTOCOLS, find_protocol
from ddrl.errors import UsageError

COMMON = {"color": False, "full_action_space": False, "stack": 4, "height": 84, "width": 84, "crop_rows": 0}
EXPECTED = {
    "nature": {
        **COMMON,
        "fire_reset": True,
        "noop_max": 30,
        "max_agent_steps": 27_000,
        "max_frames": 108_000,
        "frame_skip": 4,
        "max_pool": True,
        "stickiness": 0.0,
        "repeat_fire_after": 30,
    },
    "machado18": {
        **COMMON,
        "fire_reset": False,
        "noop_max": 0,
        "max_agent_steps": 27_000,
        "max_frames": 108_000,
        "frame_skip": 4,
        "max_pool": True,
        "stickiness": 0.25,
        "repeat_fire_after": 0,
        "full_action_space": True,
    },
    "ba3c": {
        **COMMON,
        "fire_reset": False,
        "noop_max": 0,
        "max_agent_steps": 10_000,
        "max_frames": 40_000,
        "frame_skip": [2, 4],
        "max_pool": False,
        "stickiness": 0.25,
        "repeat_fire_after": 30,
        "color": True,
    },
    "stooke": {
        **COMMON,
        "fire_reset": False,
        "noop_max": 30,
        "max_agent_steps": 27_000,
        "max_frames": 108_000,
        "frame_skip": 4,
        "max_pool": True,
        "stickiness": 0.0,
        "repeat_fire_after": 0,
        "crop_rows": 2,
        "height": 104,
        "width": 80,
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_preset_whole_value(name):
    assert PROTOCOLS[name].stamp() == {"protocol": name, **EXPECTED[name]}
    assert json.loads(json.dumps(PROTOCOLS[name].stamp())) == PROTOCOLS[name].stamp()


def test_no_preset_is_untested():
    assert set(PROTOCOLS) == set(EXPECTED)


def test_what_the_native_environment_can_do():
    assert {name: p.native for name, p in PROTOCOLS.items()} == {
        "nature": True,
        "machado18": True,
        "ba3c": False,
        "stooke": False,
    }
    assert PROTOCOLS["ba3c"].observation_shape == (12, 84, 84)
    assert PROTOCOLS["stooke"].observation_shape == (4, 104, 80)


def test_unknown_protocol_names_the_known_ones():
    with pytest.raises(UsageError, match="'natur'.*nature, machado18, ba3c, stooke"):
        find_protocol("natur")
