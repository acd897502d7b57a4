"""Every setting of every preset, pinned to its source."""

from __future__ import annotations

import dataclasses

import pytest

from ddrl import algorithms, plugins
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.types import Machine
from tests.presets.actor_critic_lines import ACTOR_CRITIC, PPO_OF_MUJOCO
from tests.presets.lines import Line
from tests.presets.replay_lines import REPLAY_LEARNERS

MACHINE = Machine(cores=2, memory_bytes=24 * 10**9, bfloat16=True)
TABLES = ACTOR_CRITIC | REPLAY_LEARNERS


def settings_of(config: TrainConfig) -> dict[str, object]:
    """Every setting by its name; names are unique over the groups."""
    groups = (getattr(config, group.name) for group in dataclasses.fields(config))
    return {field.name: getattr(group, field.name) for group in groups for field in dataclasses.fields(group)}


def named(table):
    return pytest.mark.parametrize("algorithm, preset", table, ids=["-".join(key) for key in table])


@named(TABLES)
def test_every_setting_of_a_preset_has_a_line_with_its_value_and_source(algorithm, preset):
    found = settings_of(algorithms.preset(preset, None, MACHINE, algorithm))
    table = TABLES[algorithm, preset]
    assert set(found) == set(table), "settings without a line, or lines without a setting"
    differ = {name: f"{value}, and {table[name]}" for name, value in found.items() if value != table[name].value}
    assert not differ
    assert all(isinstance(line, Line) and line.source for line in table.values())


@named(TABLES)
def test_a_rate_that_falls_does_so_over_the_agent_steps_of_its_run(algorithm, preset):
    """Or over those of a paper. Otherwise it would fall over a number of updates that nobody chose."""
    found = settings_of(algorithms.preset(preset, None, MACHINE, algorithm))
    assert found["learning_rate_schedule"] == "constant" or found["learning_rate_agent_steps"] >= found["agent_steps"]


@named(TABLES)
def test_presets_compute_in_float32_where_a_machine_emulates_bfloat16(algorithm, preset):
    emulating = settings_of(algorithms.preset(preset, None, MACHINE._replace(bfloat16=False), algorithm))
    assert emulating == {name: line.value for name, line in TABLES[algorithm, preset].items()} | {
        "compute_dtype": "float32"
    }


def test_other_games_of_mujoco_have_the_settings_of_the_paper_and_cleanrl():
    found = settings_of(algorithms.preset("mujoco", "Hopper-v5", MACHINE, "ppo"))
    differ = {name for name, value in found.items() if value != PPO_OF_MUJOCO[name].value}
    assert differ == {"game"}


@pytest.mark.parametrize(
    "game, others",
    [
        ("pong", {}),
        ("ALE/Riverraid-v5", {"entropy_cost": 0.003, "learning_rate": 1.5e-3, "adam_epsilon": 1e-3}),
        (
            "SpaceInvaders",
            {
                "epochs": 4, "pool_batches": 4, "clip_range": 0.1, "importance_clip": 0.0, "normalize_advantages": True,
                "entropy_cost_schedule": "linear", "entropy_cost_start": 0.1, "entropy_cost_start_share": 0.0833,
                "reward_scale": 0.05, "reward_clip": 4.0, "discount": 0.995, "discount_start": 0.99, "batch_size": 128,
                "discount_start_share": 0.333,
                "learning_rate": 4e-4, "learning_rate_schedule": "linear", "learning_rate_agent_steps": 6_000_000,
                "eval_actions": "drawn", "eval_epsilon": 0.0,
            },
        ),
    ],
)  # fmt: skip
def test_some_games_have_settings_of_their_own_in_ba3cs_laptop_preset(game, others):
    """Chosen on seeds from 100 on: docs/results/learning-tried.md."""
    found = settings_of(algorithms.preset("laptop", game, MACHINE, "ba3c"))
    table = ACTOR_CRITIC["ba3c", "laptop"]
    others = {"game": game, "gae_lambda": 1.0, "learning_rate": 7e-4, **others}  # the table is that of Breakout
    assert {name: value for name, value in found.items() if value != table[name].value} == others


@pytest.mark.parametrize("game", ["pong", "CartPole-v1"])
def test_breakout_alone_has_settings_of_its_own_in_ppos_laptop_preset(game):
    """Chosen on seeds from 100 on: docs/results/learning-tried.md."""
    found = settings_of(algorithms.preset("laptop", game, MACHINE, "ppo"))
    table = ACTOR_CRITIC["ppo", "laptop"]
    others = {"game": game, "gae_lambda": 0.95, "learning_rate": 1e-3}
    assert {name: value for name, value in found.items() if value != table[name].value} == others


@pytest.mark.parametrize(
    "cores, others",
    [(1, {"samples_per_insert": 1.0}), (3, {"actors": 2, "samples_per_insert": 1.0}), (4, {"actors": 3})],
)
def test_pong_has_settings_of_its_own_in_the_laptop_preset_of_ape_x(cores, others):
    """Chosen on seeds from 101 on: docs/results/learning-tried.md, "Ape-X DQN on Pong"."""
    found = settings_of(algorithms.preset("laptop", "ALE/Pong-v5", MACHINE._replace(cores=cores), "apex-dqn"))
    table = REPLAY_LEARNERS["apex-dqn", "laptop"]
    others = {"game": "ALE/Pong-v5", "n_step": 5, "epsilon_steps": 200_000, "learning_rate": 5e-4, **others}
    assert {name: value for name, value in found.items() if value != table[name].value} == others


@pytest.mark.parametrize(
    "algorithm, preset, game",
    [
        ("apex-dqn", "laptop", "pong"),
        ("ppo", "laptop", "breakout"),
        ("ba3c", "laptop", "space_invaders"),
        ("ba3c", "ba3c-paper", "ALE/Pong-v5"),
    ],
)
def test_an_environment_of_a_plugin_has_no_settings_of_the_atari_game_of_that_name(algorithm, preset, game):
    of_atari = settings_of(algorithms.preset(preset, game, MACHINE, algorithm))
    plugins.register_environment(game, lambda: None)
    of_the_plugin = settings_of(algorithms.preset(preset, game, MACHINE, algorithm))
    of_another = settings_of(algorithms.preset(preset, "My/Thing-v0", MACHINE, algorithm))
    assert of_the_plugin == of_another | {"game": game} != of_atari


def test_every_preset_has_a_table():
    known = set()
    for algorithm in list(algorithms.names()):
        for preset in tuple(algorithms.preset_names()):
            try:
                algorithms.preset(preset, None, MACHINE, algorithm)
            except UsageError:
                continue
            known.add((algorithm, preset))
    assert known == set(TABLES)


@pytest.mark.parametrize("algorithm", ["ba3c", "impala", "dpg", "hts-ppo", "apex-dqn"])
def test_stooke_and_abbeel_trained_seven_algorithms(algorithm):
    with pytest.raises(
        UsageError,
        match=f"--preset stooke is one of a2c, a3c, ppo, appo, dqn, categorical-dqn, rainbow, not of {algorithm}: ",
    ):
        algorithms.preset("stooke", None, MACHINE, algorithm)


def test_float32_where_a_papers_name_stands():
    for (algorithm, preset), table in TABLES.items():
        if (preset == "default" and algorithm != "ba3c") or preset in ("ba3c-paper", "stooke"):
            assert table["compute_dtype"].value == "float32", (algorithm, preset)
