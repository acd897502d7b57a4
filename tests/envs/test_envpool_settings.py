"""What is refused of EnvPool, how its settings follow from a protocol, and that a run keeps the backend: without it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from ddrl import rundir
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.envpool_games import atari_settings, find_task
from ddrl.envs.protocols import BA3C, MACHADO18, NATURE, STOOKE
from ddrl.errors import UsageError
from ddrl.options import train_options
from ddrl.programs import python_command
from ddrl.types import Machine


def test_where_it_is_not_installed_one_line_says_so(tmp_path):
    (tmp_path / "envpool.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [*python_command("ddrl.cli"), "train", "ppo", "--preset", "smoke", "--backend", "envpool"]
    done = subprocess.run(
        [*command, "--game", "CartPole-v1", "--run-dir", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--backend envpool: EnvPool is not installed (not here)" in line
    assert 'pip install "ddrl[envpool]"' in line and "leave --backend out" in line
    assert not (tmp_path / "run").exists()


def test_the_default_does_not_import_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    make_environment(EnvironmentConfig(game="CartPole-v1"), 1).close()
    with pytest.raises(UsageError, match="EnvPool is not installed"):
        make_environment(EnvironmentConfig(game="CartPole-v1", backend="envpool"), 1)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"reset": "swap"}, "--reset swap: EnvPool resets games at once .*leave one of the two out"),
        ({"reset": "in-pause"}, "--reset in-pause: EnvPool resets games at once"),
        ({"simulator_processes": 2}, "--simulator-processes 2: EnvPool steps .*give --simulator-threads"),
        ({"backend": "gymnasium"}, "--backend gymnasium: must be one of auto, envpool"),
    ],
)
def test_settings_that_it_does_not_have(fields, line):
    with pytest.raises(UsageError, match=line):
        EnvironmentConfig(**{"game": "CartPole-v1", "backend": "envpool"} | fields)


@pytest.mark.parametrize(
    ("protocol", "lacking"),
    [
        (BA3C, "a random number of frames per step, games without a no-op frame at their start, steps without the max"),
        (STOOKE, "a crop"),
        (MACHADO18, "games without a no-op frame at their start"),
        (dataclasses.replace(NATURE, max_pool=False), "steps without the maximum of the last two frames"),
    ],
)
def test_protocols_that_it_does_not_have(protocol, lacking):
    line = f"--protocol {protocol.name}: EnvPool lacks {lacking}.*use --protocol nature, or leave --backend"
    with pytest.raises(UsageError, match=line):
        atari_settings(protocol)


def test_settings_of_a_protocol():
    changed = dataclasses.replace(
        NATURE, noop_max=7, frame_skip=3, max_agent_steps=11, stickiness=0.25, fire_reset=False, full_action_space=True,
        height=60, width=50, color=True, stack=2,
    )  # fmt: skip
    assert atari_settings(changed) == {
        "noop_max": 7, "frame_skip": 3, "max_episode_steps": 11, "repeat_action_probability": 0.25,
        "use_fire_reset": False, "full_action_space": True, "img_height": 60, "img_width": 50, "gray_scale": False,
        "stack_num": 2, "use_inter_area_resize": True, "episodic_life": False, "reward_clip": False,
        "zero_discount_on_life_loss": False,
    }  # fmt: skip
    one_frame = dataclasses.replace(NATURE, max_pool=False, frame_skip=1)
    assert atari_settings(one_frame)["frame_skip"] == 1, "a maximum of one frame is that frame"


def test_a_run_keeps_it():
    line = "ppo --preset smoke --game CartPole-v1 --backend envpool"
    config = train_options.parse(line.split(), Machine(2, 16 * 10**9)).config
    assert config.environment.backend == "envpool"
    saved = rundir.config_to_dict(config)
    assert saved["environment"]["backend"] == "envpool"
    assert rundir.config_from_dict(saved) == config
    del saved["environment"]["backend"]  # as before there was a choice
    assert rundir.config_from_dict(saved).environment.backend == "auto"


def test_find_task_needs_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UsageError, match="EnvPool is not installed"):
        find_task("breakout", NATURE)
