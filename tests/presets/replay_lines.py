"""The presets of the Q-learning family, DPG and Ape-X, line by line."""

from __future__ import annotations

from typing import Any

from tests.presets.actor_critic_lines import ENVIRONMENT_OF_STOOKE
from tests.presets.common_lines import ADAM, COMMON, LAPTOP_NETWORK, NO_ADAM, NO_RMSPROP, SMOKE, SMOKE_NETWORK
from tests.presets.lines import (
    ACCEL_RL,
    APEX,
    C51,
    DOPAMINE,
    DQN15,
    DQN_ZOO,
    FAST_DQN,
    LASAGNE,
    LILLICRAP,
    OURS,
    RAINBOW,
    SAC,
    SCHAUL,
    SOFTLEARNING,
    STOOKE,
    UNUSED,
    Table,
    lines,
)

# DQN -----------------------------------------------------------------------------------------------------------------

NO_ATOMS = lines(UNUSED, atoms=0, value_min=-10.0, value_max=10.0)
REPLAY = {
    **lines(FAST_DQN + ", table 5", replay_capacity=1_000_000, replay_minimum=50_000),
    **lines(UNUSED, priority_exponent=0.0, importance_exponent=0.4, importance_exponent_end=1.0,
            importance_updates=1_000_000, importance_agent_steps=0),
}  # fmt: skip
DQN_DEFAULT = {
    **COMMON, **NO_ADAM, **NO_ATOMS, **REPLAY,
    **lines(FAST_DQN + ", table 5", batch_size=32, target_period=10_000, steps_per_update=4, discount=0.99),
    **lines(DQN15, reward_clip=1.0, loss="huber", epsilon_start=1.0, epsilon_end=0.1),
    **lines(FAST_DQN + ", section 5.1, and run_dqn.py: a million timesteps", epsilon_steps=1_000_000),
    **lines(FAST_DQN + ", appendix B", optimizer="rmsprop-centered", learning_rate=2.5e-4, rmsprop_decay=0.95),
    **lines(DQN15 + ": 0.01 inside the root, for sums over the batch; dqn_zoo", rmsprop_epsilon=0.01 / 32**2,
            rmsprop_epsilon_inside=True),
    **lines(FAST_DQN + ", algorithm 1", schedule="concurrent", groups=1),
    **lines(FAST_DQN + ", table 1: up to 8 samplers", simulators=8),
    **lines(FAST_DQN + ", section 5.2: 30 games every 250,000 timesteps", eval_games=30, eval_every_updates=62_500,
            eval_epsilon=0.05),
    **lines(UNUSED, n_step=1, double=False, dueling=False, reward_scale=1.0, epsilon_ladder=0.0, epsilon_values=0),
}  # fmt: skip
C51_DEFAULT = {
    **DQN_DEFAULT, **ADAM, **NO_RMSPROP,
    **lines(C51 + ", section 5", atoms=51, value_min=-10.0, value_max=10.0),
    **lines(DOPAMINE, learning_rate=2.5e-4, adam_epsilon=0.01 / 32, epsilon_end=0.01, epsilon_steps=1_000_000,
            eval_epsilon=0.001),
}  # fmt: skip
RAINBOW_DEFAULT = {
    **C51_DEFAULT,
    **lines(RAINBOW, n_step=3, learning_rate=6.25e-5, adam_epsilon=1.5e-4, priority_exponent=0.5,
            importance_exponent=0.4, importance_exponent_end=1.0),
    **lines(RAINBOW + ": 80,000 frames", replay_minimum=20_000),
    **lines(RAINBOW + ": 32,000 frames", target_period=8_000),
    **lines(RAINBOW + ": over 200 million frames; " + DQN_ZOO, importance_agent_steps=50_000_000),
    **lines("Hessel et al. 2018, Hyper-parameter tuning: 250,000 frames", epsilon_steps=62_500, epsilon_end=0.01),
    **lines("van Hasselt et al. 2016", double=True),
    **lines("Wang et al. 2016", dueling=True, clip_global_norm=10.0),
    **lines(SCHAUL + ": priorities are set after each minibatch", schedule="standard", simulators=4),
}  # fmt: skip

LADDER = lines(APEX + ", section 4.1", epsilon_start=1.0, epsilon_end=0.4, epsilon_steps=0, epsilon_ladder=7.0)
LAPTOP_REPLAY = lines(OURS, replay_capacity=200_000, replay_minimum=10_000)


def laptop(table: Table, *, steps: int, period: int, batch: int) -> Table:
    """Few simulators on a ladder, which act, then learn."""
    return {
        **table, **ADAM, **NO_RMSPROP, **LAPTOP_NETWORK, **LADDER, **LAPTOP_REPLAY,
        **lines(OURS, steps_per_update=steps, target_period=period, batch_size=batch, learning_rate=2.5e-4,
                adam_epsilon=1e-5, schedule="standard", simulators=32, eval_every_updates=1_000, minutes=60.0),
    }  # fmt: skip


def smoke(table: Table) -> Table:
    """Catch."""
    return {
        **table, **ADAM, **NO_RMSPROP, **SMOKE,
        **lines(OURS, value_min=-3.0, value_max=3.0, target_period=80, epsilon_end=0.05, epsilon_steps=4_000,
                batch_size=32, learning_rate=3e-3, adam_epsilon=1e-8, clip_global_norm=0.0, simulators=8,
                replay_capacity=20_000, replay_minimum=1_000, eval_every_updates=500, eval_games=20, eval_epsilon=0.05),
    }  # fmt: skip


def classic_control(table: Table, **others: Any) -> Table:
    """CartPole."""
    return {
        **table, **ADAM, **NO_RMSPROP, **SMOKE_NETWORK,
        **lines(OURS, game="CartPole-v1", life_loss_terminal=False, n_step=10, double=True,
                steps_per_update=8, target_period=1_024, epsilon_start=1.0, epsilon_end=0.05, epsilon_steps=20_000,
                schedule="standard", simulators=8, batch_size=128, learning_rate=1e-3, adam_epsilon=1e-5,
                replay_capacity=100_000, replay_minimum=2_000, eval_every_updates=2_000, eval_games=20,
                eval_epsilon=0.0, minutes=0.0, agent_steps=200_000),
        **lines("1 a step with a discount of 0.99", value_min=-100.0, value_max=100.0),
        **lines(OURS, **others),
    }  # fmt: skip


# Stooke and Abbeel 2018 ----------------------------------------------------------------------------------------------

DQN_STOOKE = {
    **DQN_DEFAULT, **ENVIRONMENT_OF_STOOKE,
    **lines(STOOKE + ", section 5.1: DQN-Net", network="nature"),
    **lines(STOOKE + ", section 5: a training intensity of 8", batch_size=32, steps_per_update=4),
    **lines(STOOKE + ", section 5.4", learning_rate=2.5e-4, replay_capacity=1_000_000),
    **lines(ACCEL_RL + ", algos/dqn/dqn.py", target_period=10_000, replay_minimum=50_000, epsilon_start=1.0,
            epsilon_end=0.1, epsilon_steps=1_000_000, eval_epsilon=0.05, rmsprop_decay=0.95, rmsprop_epsilon=1e-6,
            loss="huber"),
    **lines(LASAGNE, optimizer="rmsprop", rmsprop_epsilon_inside=True),
    **lines(STOOKE + ", section 4.1", schedule="standard", groups=2),
    **lines(OURS, simulators=8, eval_games=30),
    **lines(STOOKE + ", section 5: every million steps for 125,000", eval_every_updates=250_000,
            eval_agent_steps=125_000, eval_time_share=1.0, evaluation_minutes=0.0),
}  # fmt: skip
C51_STOOKE = {
    **DQN_STOOKE, **ADAM, **NO_RMSPROP,
    **lines(ACCEL_RL + ", algos/dqn/cat_dqn.py", atoms=51, value_min=-10.0, value_max=10.0, epsilon_end=0.01,
            epsilon_steps=1_000_000, eval_epsilon=0.001, learning_rate=2.5e-4),
    **lines(STOOKE + ", section 5.4: 0.01 / L", adam_epsilon=0.01 / 32),
}  # fmt: skip
RAINBOW_STOOKE = {
    **C51_STOOKE,
    **lines(ACCEL_RL + ", algos/dqn/eps_rainbow.py", n_step=3, double=True, dueling=True, target_period=8_000,
            replay_minimum=20_000, learning_rate=6.25e-5, clip_global_norm=10.0, epsilon_steps=62_500,
            priority_exponent=0.5, importance_exponent=0.4, importance_exponent_end=1.0,
            importance_agent_steps=50_000_000),
    **lines(STOOKE + ", section 5.4: 0.005 / L", adam_epsilon=0.005 / 32),
}  # fmt: skip

# Ape-X DQN -----------------------------------------------------------------------------------------------------------

APEX_DQN_DEFAULT = {
    **COMMON, **NO_ADAM, **NO_ATOMS, **LADDER,
    **lines(APEX + ", appendix C", n_step=3, double=True, dueling=True, optimizer="rmsprop-centered", reward_clip=1.0,
            learning_rate=2.5e-4 / 4, rmsprop_decay=0.95, rmsprop_epsilon=1.5e-7, clip_global_norm=40.0,
            replay_minimum=50_000, target_every_updates=2_500),
    **lines(APEX + ", section 3.1", loss="squared"),
    **lines(APEX + ", section 4.1", batch_size=512, replay_capacity=2_000_000, trim_every_updates=100,
            priority_exponent=0.6, importance_exponent=0.4, importance_exponent_end=0.4, refresh_every_frames=400,
            segment_length=50, prefetch=16, episode_frames=50_000, eviction_exponent=None),
    **lines(DQN15, discount=0.99, life_loss_terminal=True, rmsprop_epsilon_inside=True),
    **lines(APEX + ", figure 7", eval_epsilon=0.00164),
    **lines(APEX + ", algorithms 1 and 2", schedule="asynchronous"),
    **lines(OURS, actors=8, replay_shards=1, simulators=16, groups=1, segments_in_flight=8, eval_games=30),
    **lines(UNUSED, steps_per_update=4, target_period=10_000, reward_scale=1.0, epsilon_values=0,
            importance_updates=1_000_000),
}  # fmt: skip
APEX_DQN_LAPTOP = {
    **APEX_DQN_DEFAULT, **ADAM, **NO_RMSPROP, **LAPTOP_NETWORK, **LAPTOP_REPLAY,
    **lines(OURS, simulators=32, actors=1, target_every_updates=300, batch_size=128, learning_rate=2.5e-4,
            adam_epsilon=1e-5, clip_global_norm=10.0),
}  # fmt: skip
APEX_DQN_SMOKE = {
    **APEX_DQN_DEFAULT, **ADAM, **NO_RMSPROP, **SMOKE,
    **lines(OURS, life_loss_terminal=True, simulators=4, replay_capacity=20_000, replay_minimum=1_000, actors=2,
            prefetch=4, target_every_updates=100, batch_size=32, learning_rate=1e-3, adam_epsilon=1e-8,
            clip_global_norm=10.0, eval_every_updates=500, eval_games=20, eval_epsilon=0.0),
}  # fmt: skip

# DPG and Ape-X DPG ---------------------------------------------------------------------------------------------------

DPG_DEFAULT = {
    **COMMON, **ADAM,
    **lines(OURS, game="Pendulum-v1", life_loss_terminal=False, network="mlp", schedule="standard", simulators=8,
            groups=1, eval_every_updates=5_000, eval_games=20, adam_epsilon=1e-8, reward_scale=1.0),
    **lines(OURS + f": 1 in {LILLICRAP}, 163 in {APEX}", steps_per_update=8),
    **lines(APEX + ", appendix D", policy_layers=(300, 200), critic_layers=(400, 300), slope_clip=1.0, noise=0.3,
            learning_rate=1e-4, target_updates=100, priority_exponent=0.6, replay_capacity=1_000_000),
    **lines(APEX + ", appendix D: otherwise as their DQN", n_step=3, reward_clip=1.0, replay_minimum=50_000,
            clip_global_norm=40.0, importance_exponent=0.4, importance_exponent_end=0.4),
    **lines(APEX + ", section 4.2", batch_size=256),
    **lines(LILLICRAP + ", section 7", discount=0.99),
    **lines(UNUSED, importance_updates=1_000_000),
}  # fmt: skip
LARGER_STEPS = lines(
    OURS, n_step=5, reward_clip=0.0, reward_scale=0.1, replay_capacity=200_000, replay_minimum=2_000, batch_size=128,
    learning_rate=1e-3, clip_global_norm=0.0, minutes=6.0,
)  # fmt: skip
DPG_LAPTOP = {**DPG_DEFAULT, **LARGER_STEPS, **lines(SCHAUL, importance_exponent=0.4, importance_exponent_end=1.0)}
TINY = lines(
    OURS, policy_layers=(32, 32), critic_layers=(32, 32), replay_capacity=20_000, replay_minimum=400, batch_size=32,
    eval_every_updates=1_000, eval_games=5, minutes=0.5, log_every_seconds=1.0, video=False,
)  # fmt: skip
ACTORS_OF_DPG = {
    **lines(APEX + ", appendix D", eviction_exponent=-0.4, target_every_updates=100),
    **lines(APEX + ", algorithms 1 and 2", schedule="asynchronous"),
    **lines(OURS, actors=8, replay_shards=1, simulators=8),
}
APEX_DPG_DEFAULT = {**DPG_DEFAULT, **ACTORS_OF_DPG}
APEX_DPG_LAPTOP = {**APEX_DPG_DEFAULT, **LARGER_STEPS, **lines(OURS, actors=1, simulators=4)}
APEX_DPG_SMOKE = {**APEX_DPG_LAPTOP, **TINY, **lines(OURS, actors=2, simulators=2, prefetch=4)}

# SAC -----------------------------------------------------------------------------------------------------------------

SAC_DEFAULT = {
    **COMMON, **ADAM,
    **lines(OURS, game="Pendulum-v1", life_loss_terminal=False, network="mlp", schedule="standard", groups=1,
            eval_every_updates=5_000, eval_games=20, adam_epsilon=1e-8, reward_scale=1.0, reward_clip=0.0, n_step=1,
            temperature_rate=1.0),
    **lines(SAC, learning_rate=3e-4, discount=0.99, replay_capacity=1_000_000, policy_layers=(256, 256),
            critic_layers=(256, 256), batch_size=256, target_entropy=None, target_average=0.005, steps_per_update=1,
            simulators=1),
    **lines(SOFTLEARNING, replay_minimum=10_000),
}  # fmt: skip
SAC_LAPTOP = {
    **SAC_DEFAULT,
    **lines(OURS, policy_layers=(128, 128), critic_layers=(128, 128), simulators=4, replay_capacity=200_000,
            replay_minimum=1_000, batch_size=128, learning_rate=1e-3, minutes=6.0),
}  # fmt: skip

REPLAY_LEARNERS: dict[tuple[str, str], Table] = {
    ("dqn", "default"): DQN_DEFAULT,
    ("dqn", "laptop"): laptop(DQN_DEFAULT, steps=32, period=4_800, batch=128),
    ("dqn", "smoke"): smoke(DQN_DEFAULT),
    ("dqn", "classic-control"): classic_control(DQN_DEFAULT, reward_clip=0.0),
    ("dqn", "stooke"): DQN_STOOKE,
    ("categorical-dqn", "default"): C51_DEFAULT,
    ("categorical-dqn", "laptop"): laptop(C51_DEFAULT, steps=16, period=960, batch=64),
    ("categorical-dqn", "smoke"): smoke(C51_DEFAULT),
    ("categorical-dqn", "classic-control"): classic_control(C51_DEFAULT, reward_clip=1.0),
    ("categorical-dqn", "stooke"): C51_STOOKE,
    ("rainbow", "default"): RAINBOW_DEFAULT,
    ("rainbow", "laptop"): laptop(RAINBOW_DEFAULT, steps=32, period=4_800, batch=128),
    ("rainbow", "smoke"): smoke(RAINBOW_DEFAULT),
    ("rainbow", "classic-control"): classic_control(RAINBOW_DEFAULT, reward_clip=1.0, importance_agent_steps=200_000),
    ("rainbow", "stooke"): RAINBOW_STOOKE,
    ("dpg", "default"): DPG_DEFAULT,
    ("dpg", "laptop"): DPG_LAPTOP,
    ("dpg", "smoke"): {**DPG_LAPTOP, **TINY},
    ("sac", "default"): SAC_DEFAULT,
    ("sac", "laptop"): SAC_LAPTOP,
    ("sac", "smoke"): {**SAC_LAPTOP, **TINY, **lines(OURS, steps_per_update=4)},
    ("apex-dqn", "default"): APEX_DQN_DEFAULT,
    ("apex-dqn", "laptop"): APEX_DQN_LAPTOP,
    ("apex-dqn", "smoke"): APEX_DQN_SMOKE,
    ("apex-dpg", "default"): APEX_DPG_DEFAULT,
    ("apex-dpg", "laptop"): APEX_DPG_LAPTOP,
    ("apex-dpg", "smoke"): APEX_DPG_SMOKE,
}
