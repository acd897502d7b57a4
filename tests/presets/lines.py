"""How the tables of presets are written: a line is a value and the source that it is from."""

from __future__ import annotations

from typing import Any, NamedTuple


class Line(NamedTuple):
    """One setting of a preset.

    Attributes:
        value: as the preset must have it, for breakout (or the preset's own game) on a machine of 2 cores and 24 GB.
        source: paper with section or table, released code, or OURS.
    """

    value: Any
    source: str


Table = dict[str, Line]

# What is chosen here, and what a setting is that plays no part in the algorithm.
OURS = "ours"
UNUSED = "not used"

# Papers.
ADAMSKI = "Adamski et al. 2018"
APEX = "Horgan et al. 2018"
C51 = "Bellemare et al. 2017"
DQN15 = "Mnih et al. 2015, extended data table 1"
A3C16 = "Mnih et al. 2016"
FAST_DQN = "Daley and Amato 2022"
HTS = "Liu et al. 2020, section 5"
IMPALA = "Espeholt et al. 2018, table G.1"
PPO = "Schulman et al. 2017, table 5"
PPO_MUJOCO = "Schulman et al. 2017, table 3"
SAC = "Haarnoja et al. 2018b, table 1"
RAINBOW = "Hessel et al. 2018, table 1"
STOOKE = "Stooke and Abbeel 2018"
SCHAUL = "Schaul et al. 2016, algorithm 1"
LILLICRAP = "Lillicrap et al. 2016"

# Released code.
ACCEL_RL = "accel_rl (Stooke and Abbeel 2018)"
BA3C_CODE = "Distributed-BA3C (Adamski et al. 2018)"
CLEANRL = "CleanRL, ppo_continuous_action.py"
ZOO = "RL Baselines3 Zoo, hyperparams/ppo.yml, HalfCheetah-v4"
BASELINES_PPO = "OpenAI Baselines, ppo2/defaults.py"
DOPAMINE = "Dopamine, c51_icml.gin and rainbow_aaai.gin"
SOFTLEARNING = "softlearning (Haarnoja et al. 2018b)"
DQN_ZOO = "dqn_zoo, run_atari.py"
KOSTRIKOV = "Kostrikov 2018, which Liu et al. 2020 follow"
KOSTRIKOV_A2C = "Kostrikov 2018, a2c_ppo_acktr/arguments.py, with PyTorch's RMSProp"
LASAGNE = "Lasagne, updates.py, which accel_rl uses"
PPO1 = "OpenAI Baselines, ppo1, of the authors of Schulman et al. 2017"
SCALABLE_AGENT = "scalable_agent (Espeholt et al. 2018), experiment.py"


def lines(source: str, **values: Any) -> Table:
    """One line for each setting, all from one source."""
    return {name: Line(value, source) for name, value in values.items()}
